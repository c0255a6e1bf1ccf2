# SPDX-License-Identifier: Apache-2.0
"""Who may read and write an SQLite file, and the directory it lies in.

Whoever writes the file decides where servers land, and whoever may write its
directory can put another file in its place. SQLite itself makes files as the
process's umask says, for all to read; its log and its shared memory (``-wal``,
``-shm``) get the rights of the file.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat

from oslo_log import log as logging

from nova_nodb_scheduler import errors

LOG = logging.getLogger(__name__)

MODE = 0o600
_BESIDE = ("", "-wal", "-shm")
_OTHERS = stat.S_IRWXO


def prepare(path: str, option: str) -> None:
    """Make the file for its owner alone, or look at the one that is there; idempotent.

    A file that others may read (a former release made such) is closed to group
    and others. One that only its group may read, too, was made so by the
    operator and stays. What root makes in another's directory is given to that
    user, or Nova's services could not open it.

    :raises ConfigurationError: everybody may put another file in its place
    """
    file = pathlib.Path(path)
    directory = file.absolute().parent
    try:
        found = directory.stat()
    except OSError:
        return  # to open it says why
    _check_directory(directory, found, option)
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, MODE)
    except FileExistsError:
        _close_to_others(file)
        return
    except OSError:
        return
    with contextlib.closing(os.fdopen(descriptor, "rb")):
        if os.geteuid() == 0 and found.st_uid != 0:
            os.fchown(descriptor, found.st_uid, found.st_gid)


def _check_directory(directory: pathlib.Path, found: os.stat_result, option: str) -> None:
    everybody_writes = bool(found.st_mode & stat.S_IWOTH)
    if everybody_writes and not found.st_mode & stat.S_ISVTX:
        raise errors.ConfigurationError(
            option,
            str(directory),
            "everybody on this host may write that directory, and so replace the file by which "
            f"servers are placed: run 'chmod o-w {directory}', or name another directory",
        )
    if everybody_writes:
        LOG.warning(
            "Everybody on this host may make files in %(directory)s, where the file by which "
            "servers are placed lies; give %(option)s a directory of its own.",
            {"directory": directory, "option": option},
        )
    elif found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
        LOG.warning(
            "The directory %(directory)s belongs to user %(owner)d, and this process runs as "
            "%(own)d: that user may replace the file by which servers are placed.",
            {"directory": directory, "owner": found.st_uid, "own": os.geteuid()},
        )


def _close_to_others(file: pathlib.Path) -> None:
    for end in _BESIDE:
        beside = file.with_name(file.name + end)
        try:
            mode = stat.S_IMODE(beside.stat().st_mode)
            if mode & _OTHERS:
                beside.chmod(MODE)
                LOG.warning(
                    "%(file)s could be read by everybody on this host (%(mode)o); it is its "
                    "owner's alone now.",
                    {"file": beside, "mode": mode},
                )
        except FileNotFoundError:
            continue
        except OSError as error:
            LOG.warning(
                "%(file)s can be read by everybody on this host, and cannot be closed to them "
                "(%(error)s): run 'chmod 600' on it as its owner.",
                {"file": beside, "error": error},
            )
