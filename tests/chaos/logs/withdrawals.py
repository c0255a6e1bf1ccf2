# SPDX-License-Identifier: Apache-2.0
"""What schedulers took back before they answered, and when they answered, by their own lines.

And of what they answered an error, and what Placement deleted, by its own lines.
"""

import datetime
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Iterator

import attrs

from tests.chaos.logs import log_tails

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_WITHDRAWN = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) .*"
    rf"Placement granted too much of \S+ on provider (?P<provider>{_UUID}), .*: "
    rf"the allocation of server (?P<server>{_UUID}) there is withdrawn\.$"
)
_ANSWERED = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) .*"
    rf"\bServers (?P<servers>{_UUID}(?:, {_UUID})*): (?P<outcome>\w+) after \d"
)
_DELETED = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) .*"
    rf'"DELETE /allocations/(?P<consumer>{_UUID})" status: 204 '
)


@attrs.frozen
class Withdrawal:
    """An allocation that its writer was about to take back.

    :param provider: its uuid
    :param at: seconds since the epoch
    """

    server: str
    provider: str
    at: float


@attrs.frozen
class Answer:
    """A request for a server was answered with a host.

    :param at: seconds since the epoch
    """

    server: str
    at: float


@attrs.frozen
class Refusal:
    """A request for a server was answered with an error: nobody was told of a host.

    :param at: seconds since the epoch
    """

    server: str
    at: float


@attrs.frozen
class Deletion:
    """Placement deleted all that a consumer had, and answered.

    :param at: of the answer, seconds since the epoch: it was committed before
    """

    consumer: str
    at: float


Told = Withdrawal | Answer | Refusal | Deletion


def read(lines: Iterable[str]) -> Iterator[Told]:
    """Yield what a scheduler's log, or Placement's, tells."""
    for line in lines:
        deleted = _DELETED.match(line)
        if deleted is not None:
            yield Deletion(deleted["consumer"], _seconds(deleted["at"]))
            continue
        found = _WITHDRAWN.match(line.rstrip("\n"))
        if found is not None:
            yield Withdrawal(found["server"], found["provider"], _seconds(found["at"]))
        answered = _ANSWERED.match(line)
        if answered is not None:
            at = _seconds(answered["at"])
            kind = Answer if answered["outcome"] == "selected" else Refusal
            yield from (kind(server, at) for server in answered["servers"].split(", "))


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


class WithdrawalLines:
    """Reads what was written to some logs since it was made; see ``decision_lines``."""

    def __init__(self, logs: Iterable[pathlib.Path]) -> None:
        self._tails = [log_tails.LogTail(log) for log in logs]

    def read(self) -> list[Told]:
        return list(read(log_tails.lines(self._tails)))


def since_now(logs: Iterable[pathlib.Path]) -> Callable[[], list[Told]]:
    """Return what reads what these logs say from now on; with monotonic times."""
    lines = WithdrawalLines(logs)
    ahead_seconds = time.time() - time.monotonic()
    return lambda: [attrs.evolve(each, at=each.at - ahead_seconds) for each in lines.read()]
