# SPDX-License-Identifier: Apache-2.0
"""What schedulers took back before they answered, and when they answered, by their own lines.

And of what they answered an error, where conductors sent new servers, and what Placement deleted,
by their own lines.
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
    rf"\bServers (?P<servers>{_UUID}(?:, {_UUID})*): (?P<outcome>\w+) "
    r"after (?P<seconds>\d+\.\d+) s(?:, .*?; hosts: (?P<hosts>[^;]*);)?"
)
# A conductor's word for each host that it sends a new server to, alternates among them.
_SENT = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) .*"
    rf"\[instance: (?P<server>{_UUID})\] Selected host: \S+; Selected node: (?P<node>\S+); "
)
_DELETED = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) .*"
    rf'"(?P<how>DELETE|PUT) /allocations/(?P<consumer>{_UUID})" status: 204 '
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
    """A request for a server was answered with a host, or a conductor sent it there.

    :param at: seconds since the epoch
    :param host: empty if it is not told
    """

    server: str
    at: float
    host: str


@attrs.frozen
class Refusal:
    """A request for a server was answered with an error: nobody was told of a host.

    :param at: seconds since the epoch
    :param took_seconds: what it wrote, it wrote within them
    """

    server: str
    at: float
    took_seconds: float

    @property
    def began_at(self) -> float:
        return self.at - self.took_seconds


@attrs.frozen
class Deletion:
    """Placement deleted all that a consumer had, and answered.

    :param at: of the answer, seconds since the epoch: it was committed before
    """

    consumer: str
    at: float


@attrs.frozen
class Rewriting:
    """Placement wrote all that a consumer has anew, or took it, and answered.

    :param at: see :class:`Deletion`
    """

    consumer: str
    at: float


Told = Withdrawal | Answer | Refusal | Deletion | Rewriting


def read(lines: Iterable[str]) -> Iterator[Told]:
    """Yield what a scheduler's or conductor's log, or Placement's, tells."""
    for line in lines:
        deleted = _DELETED.match(line)
        if deleted is not None:
            changed = Deletion if deleted["how"] == "DELETE" else Rewriting
            yield changed(deleted["consumer"], _seconds(deleted["at"]))
            continue
        found = _WITHDRAWN.match(line.rstrip("\n"))
        if found is not None:
            yield Withdrawal(found["server"], found["provider"], _seconds(found["at"]))
        answered = _ANSWERED.match(line)
        if answered is not None:
            yield from _answers(answered)
        sent = _SENT.match(line)
        if sent is not None:
            yield Answer(sent["server"], _seconds(sent["at"]), sent["node"])


def _answers(told: re.Match[str]) -> Iterator[Answer | Refusal]:
    at, servers = _seconds(told["at"]), told["servers"].split(", ")
    if told["outcome"] != "selected":
        yield from (Refusal(server, at, float(told["seconds"])) for server in servers)
        return
    hosts = (told["hosts"] or "").split(", ")
    if len(hosts) != len(servers):
        hosts = [""] * len(servers)
    yield from (Answer(server, at, host) for server, host in zip(servers, hosts, strict=True))


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
