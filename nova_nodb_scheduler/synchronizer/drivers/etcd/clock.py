# SPDX-License-Identifier: Apache-2.0
"""The time of the member that answers, out of the Date of its answers.

etcd has no clock to ask; every answer of its gateway has the second in which
the member sent it. A record that clients advance would be no better: who
advances it needs a clock, too, and each reading would cost a commit. So with
one member this is the same clock for all; with several it is as good as the
members' NTP, which is checked at the start (:mod:`.server_check`).

Where answers carry no Date (a proxy took it away) there is no time: whoever
asks for it is refused, and so no lease ends meanwhile.
"""

from __future__ import annotations

import email.utils
from collections.abc import Callable

from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.support import clocks

LOG = log.getLogger(__name__)

#: Not worth to step back for: two members' clocks by NTP.
SLACK_SECONDS = 1.0
#: Of a Date: the true time may be so much later.
GRAIN_SECONDS = 1.0

NO_DATE = (
    "its answers carry no Date, by which leases of claims end; let the proxy before it pass that "
    "header on, or name the members themselves"
)


class ServerClock(clocks.BackendClock):
    """The time of the members; any thread may call.

    An answer says that the time was between its Date and a second later.
    """

    def __init__(self, ask: Callable[[], object], label: str) -> None:
        super().__init__(ask, label, SLACK_SECONDS)
        self._is_told = True
        #: How often the time was asked for and no answer told it.
        self.untold = 0
        self._last: tuple[str, float] = ("", 0.0)

    def note_date(self, date: str | None, sent_at: float, received_at: float) -> None:
        """Take the Date of an answer, and when request and answer passed (monotonic)."""
        seconds = self._parse(date) if date else None
        if seconds is not None:
            self._is_told = True
            self.note(seconds, seconds + GRAIN_SECONDS, sent_at, received_at)

    def _untold(self) -> errors.BackendUnavailable:
        self.untold += 1
        is_news, self._is_told = self._is_told, False
        if is_news:
            LOG.error(
                "%(label)s does not tell its time: %(remedy)s",
                {"label": self._label, "remedy": NO_DATE},
            )
        return errors.BackendUnavailable(self._label, NO_DATE)

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
