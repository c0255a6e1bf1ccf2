# SPDX-License-Identifier: Apache-2.0
"""Judges whether schedulers can keep a checkpoint, and whether others could read or write it."""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Iterator

from nova_nodb_scheduler.cmd.overview import deployment
from nova_nodb_scheduler.cmd.upgrade_check import judgements

_OPTION = "[nodb_scheduler] checkpoint_directory"
#: Ends of attempts that an operator is to mend.
_FAILED = ("failed", "too large")


def judge_directory(directory: str | None) -> Iterator[judgements.Judgement]:
    """Say whether this machine's directory is fit, as far as this user can see.

    :param directory: None or empty where no checkpoint is kept
    """
    if not directory:
        yield judgements.success(f"{_OPTION} is unset: a scheduler that starts reads everything.")
        return
    path = pathlib.Path(directory)
    try:
        told = path.stat()
    except FileNotFoundError:
        yield from _judge_missing(path)
        return
    except OSError as error:
        yield judgements.warning(f"{_OPTION} cannot be looked at: {error}.")
        return
    if not stat.S_ISDIR(told.st_mode):
        yield judgements.warning(f"{_OPTION} = {path} is no directory: name another one.")
        return
    faults = list(_faults(path, told))
    yield from map(judgements.warning, faults)
    if not faults:
        yield judgements.success(f"{path} is its owner's alone.")


def _judge_missing(path: pathlib.Path) -> Iterator[judgements.Judgement]:
    above = next((each for each in path.parents if each.exists()), path)
    if os.access(above, os.W_OK | os.X_OK):
        yield judgements.success(f"{path} will be made by the first scheduler.")
    else:
        yield judgements.warning(
            f"{path} is not there, and this user cannot make it: run this as the user of "
            f"nova-scheduler, or make it with mode 0700 and that user as its owner."
        )


def _faults(path: pathlib.Path, told: os.stat_result) -> Iterator[str]:
    if told.st_mode & 0o022:
        yield f"Others may write to {path}, and no scheduler uses it: chmod 0700 {path}."
    elif told.st_mode & 0o077:
        yield f"Others may look into {path}: chmod 0700 {path}."
    if os.geteuid() not in (0, told.st_uid):
        yield (
            f"{path} is of user {told.st_uid}, and this is user {os.geteuid()}: if nova-scheduler "
            f"is another's than the directory's, it does not use it; run this as its user to know."
        )
    elif not os.access(path, os.W_OK | os.X_OK):
        yield f"{path} cannot be written: see its mode, and whether its file system is read-only."


def judge_writers(found: deployment.Deployment) -> Iterator[judgements.Judgement]:
    """Say whose last checkpoint could not be written."""
    for each in found.schedulers:
        kept = each["checkpoint"] or {}
        if each["alive"] and kept.get("outcome") in _FAILED:
            yield judgements.warning(
                f"The scheduler on {each['host']} (process {each['pid']}) could not write its "
                f"checkpoint ({kept['outcome']}): {kept.get('detail')}."
            )
