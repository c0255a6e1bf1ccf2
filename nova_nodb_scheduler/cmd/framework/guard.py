# SPDX-License-Identifier: Apache-2.0
"""One guard around every command: what ends it is one line, with a status of its own.

An exception that nobody expects must not look like a command's verdict: status
1 says "they differ", or "not healthy". It is told on standard error by itself,
because a library's logger may write to a file, or nowhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Sequence

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded
from nova_nodb_scheduler.model import records

#: The command did not do its work, or could not find out what it was asked for.
FAILED = 3
#: The same of nova-nodb-status, as OpenStack's upgrade checks have it.
CHECK_FAILED = 255
#: As a shell says that SIGINT and SIGPIPE ended a process.
INTERRUPTED = 130
NOBODY_READS = 141

DEBUG_OPTION = "--debug"

#: In a URL: a name and its password, which may hold any character, or a token by itself.
_CREDENTIALS = re.compile(r"(?<=://)(?:([^\s/:]*:)\S*|[^\s/:@]+)@")
_MOST_CHARACTERS = 500

#: What to look at, by the package whose error it is.
_REMEDIES = (
    (
        ("oslo_db", "sqlalchemy", "pymysql", "psycopg2"),
        (
            "A database of Nova's failed: see [api_database] connection, [database] connection "
            "and 'nova-manage cell_v2 list_cells'"
        ),
    ),
    (("keystoneauth1", "openstack"), "Placement or keystone failed: see [placement]"),
    (
        ("oslo_messaging", "kombu", "amqp"),
        "The message bus failed: see [DEFAULT] transport_url",
    ),
)


def main(program: str, act: Callable[[], int], *, argv: Sequence[str], failed: int = FAILED) -> int:
    """Run a program whole; returns its exit status.

    Where something that was asked never answered, this ends the process itself:
    at its end an interpreter waits for threads that libraries started.

    :param argv: its arguments; ``--debug`` among them shows all of an error
    :param failed: the status of what ended in an error
    """
    former = bounded.left_behind()
    status = caught(program, act, failed=failed, debug=DEBUG_OPTION in argv)
    status = caught(program, lambda: _flushed(status), failed=failed)
    if bounded.left_behind() - former:
        logging.shutdown()
        os._exit(status)
    return status


def caught(name: str, act: Callable[[], int], *, failed: int = FAILED, debug: bool = False) -> int:
    """Run a command; what it raises becomes one line on standard error, and a status.

    :param name: who speaks, at the beginning of the line
    """
    try:
        return act()
    except KeyboardInterrupt:
        say(f"{name}: interrupted")
        return INTERRUPTED
    except SystemExit as ended:
        # argparse ends with a number; who gives a text means an error.
        if ended.code is None or isinstance(ended.code, int):
            raise
        say(f"{name}: {_one_line(str(ended.code))}")
        return failed
    except Exception as error:  # noqa: BLE001 - what it is for
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return NOBODY_READS
        if debug:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        say(f"{name}: {describe(error)}")
        return failed


def describe(error: BaseException) -> str:
    """Say in one line what failed, and what to look at; without credentials."""
    if isinstance(error, errors.NodbError):
        return _one_line(str(error))
    if isinstance(error, cfg.Error):
        return _of_configuration(error)
    told = said(error)
    packages = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    for names, remedy in _REMEDIES:
        if packages.intersection(names):
            return f"{remedy} ({told})."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return f"{told}. This error has no name here: {DEBUG_OPTION} shows where it comes from."


def _of_configuration(error: cfg.Error) -> str:
    text = f"Nova's configuration cannot be read: {_one_line(str(error))}."
    if isinstance(error, cfg.ConfigFilesPermissionDeniedError):
        text += " Run this as a user who may read it: root, or that of Nova's services."
    return text


def said(error: BaseException) -> str:
    """Say what a library said, in one line and without credentials."""
    return f"{type(error).__name__}: {_one_line(str(error), _MOST_CHARACTERS)}".rstrip(": ")


def _one_line(text: str, most_characters: int | None = None) -> str:
    # SQLAlchemy adds its statement in a line of its own, and a link.
    if most_characters is not None:
        text = text.partition("\n")[0][:most_characters]
    line = " ".join(text.split())
    # What stands in it may have been chosen by a compute node.
    return masked(records.printable_name(line, len(line)))


def masked(text: str) -> str:
    """Return a text with ``***`` in the place of each password and token of the URLs in it.

    A user's name stays: whose password is wrong, or whose rights are missing, is to be seen.
    """
    return _CREDENTIALS.sub(r"\1***@", text)


def say(line: str) -> None:
    """Write a line to standard error, if that can be written to."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _flushed(status: int) -> int:
    sys.stdout.flush()
    return status


def _nobody_reads() -> bool:
    """Tell whether it is standard output that is closed; stop writing there then."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    # The interpreter flushes what is left at its end, and would complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return True
