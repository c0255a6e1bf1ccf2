# SPDX-License-Identifier: Apache-2.0
"""The time of the member that answers, out of the Date of its answers.

etcd has no clock to ask; every answer of its gateway has the second in which
the member sent it. A record that clients advance would be no better: who
advances it needs a clock, too, and each reading would cost a commit. So with
one member this is the same clock for all; with several it is as good as the
members' NTP, which is checked at the start (:mod:`.server_check`).

Where answers carry no Date (a proxy took it away) there is no time: whoever
asks for it is refused, and so no lease ends meanwhile. This process's own clock
would end leases of others that still run.
"""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable

from oslo_log import log

from nova_nodb_scheduler import errors

LOG = log.getLogger(__name__)

#: Without an answer for so long, one is asked for.
CACHE_SECONDS = 1.0
#: Not worth to step back for: two members' clocks by NTP.
SLACK_SECONDS = 1.0


NO_DATE = (
    "its answers carry no Date, by which leases of claims end; let the proxy before it pass that "
    "header on, or name the members themselves"
)


class ServerClock:
    """The server's time between answers; any thread may call.

    An answer says that the server's time was between its Date and a second
    later, at some moment between request and answer. The greatest lower bound
    of the offset to the monotonic clock that was ever seen comes close to the
    true one, and never runs back; only an upper bound that contradicts it (the
    server's own clock was set back) makes this one follow.

    :param ask: asks the server anything; its answer is noted before it returns
    :param label: of the server, for messages
    """

    def __init__(self, ask: Callable[[], object], label: str) -> None:
        self._ask = ask
        self._label = label
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._noted_at = float("-inf")
        self._is_told = True
        #: How often the time was asked for and no answer told it.
        self.untold = 0
        self._last: tuple[str, float] = ("", 0.0)

    def note(self, date: str | None, sent_at: float, received_at: float) -> None:
        """Take the Date of an answer, and when request and answer passed (monotonic)."""
        seconds = self._parse(date) if date else None
        if seconds is None:
            return
        least, most = offset_bounds(seconds, sent_at, received_at)
        with self._lock:
            known = self._offset
            if known is None or least > known or known > most + SLACK_SECONDS:
                self._offset = least
            self._noted_at = max(self._noted_at, received_at)

    def now_seconds(self) -> float:
        """Return the server's time, at most a second too early.

        :raises BackendUnavailable: it does not answer, or does not tell its time
        """
        needed_since = time.monotonic() - CACHE_SECONDS
        if self._noted_at < needed_since:
            # From before the request: who is held up behind it has an answer still.
            needed_since = time.monotonic()
            self._ask()
        with self._lock:
            if self._offset is not None and self._noted_at >= needed_since:
                self._is_told = True
                return self._offset + time.monotonic()
            self.untold += 1
            is_news, self._is_told = self._is_told, False
        if is_news:
            LOG.error(
                "%(label)s does not tell its time: %(remedy)s",
                {"label": self._label, "remedy": NO_DATE},
            )
        raise errors.BackendUnavailable(self._label, NO_DATE)

    def _parse(self, date: str) -> float | None:
        # One second's answers have one Date, and parsing costs 10 us.
        text, seconds = self._last
        if text == date:
            return seconds
        parsed = parse_date(date)
        if parsed is not None:
            self._last = (date, parsed)
        return parsed


def parse_date(date: str) -> float | None:
    """Return the seconds of a Date header, or None where it is none."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def offset_bounds(seconds: float, sent_at: float, received_at: float) -> tuple[float, float]:
    """Return between what the server's clock is before the monotonic one."""
    return seconds - received_at, seconds + 1.0 - sent_at
