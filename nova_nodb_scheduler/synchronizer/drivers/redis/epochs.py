# SPDX-License-Identifier: Apache-2.0
"""Epochs in Redis: which one is in force, and who begins another.

The server begins them, in one script that compares what it holds with what it
is: of several clients that ask at once, one begins the epoch and the others
find it. A new epoch is empty. What a stale replica or an old backup holds is
not used: it may lack acknowledged claims, and grant again what was granted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

from oslo_log import log

from nova_nodb_scheduler.synchronizer.drivers.redis import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.redis import layout, options, scripts, steps
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory

LOG = log.getLogger(__name__)


class Epochs(epoch_memory.EpochKeeper):
    """The epoch in force, and what is run in it; any thread may call."""

    def __init__(
        self,
        settings: options.RedisOptions,
        connection: connection_module.Connection,
        keys: layout.Keys,
        observer: steps.Observer,
    ) -> None:
        super().__init__(connection.unavailable)
        self._settings = settings
        self._connection = connection
        self._keys = keys
        self._observer = observer
        self.memory = epoch_memory.EpochMemory()
        self._known: layout.Epoch | None = None

    def look_again(self) -> None:
        """Ask the server again at the next call; what was seen is not forgotten."""
        self._known = None

    def current(self) -> layout.Epoch:
        """Return the epoch last known to be in force; scripts prove it."""
        known = self._known
        if known is not None and known.name == self._newest_name():
            return known
        return self.renew()

    def renew(self, why_anew: str = "") -> layout.Epoch:
        """Ask the server which epoch is in force; it begins one where it must.

        :param why_anew: begin one in any case, for this reason
        :raises ConfigurationError: the keys are another cloud's or release's
        :raises BackendUnavailable: it holds an epoch that is older than one
            that was seen, and the like was replaced too lately
        """
        reasons = [why_anew]

        def ask() -> layout.Epoch:
            self._known = self._ask(reasons.pop() if reasons else "")
            return self._known

        return self.across(ask)

    def _ask(self, why_anew: str) -> layout.Epoch:
        """Ask once.

        :raises EpochEnded: while the answer was on its way another thread learned of
            a later one
        """
        self._observer(steps.Step.EPOCH)
        newest = self._newest_name()
        turns = "" if self.memory.pause_seconds() else self.memory.next_turn()
        try:
            answer = self._connection.run(
                scripts.EPOCH,
                self._keys.all,
                layout.FORMAT,
                self._settings.cloud_name,
                secrets.token_hex(8),
                why_anew,
                newest,
                turns,
                self.memory.version_seen(newest),
            )
        except connection_module.ReplyLost as error:
            # Had it begun one, the next to ask finds it.
            raise self._connection.unavailable(error) from error
        verdict, value = answer[0], answer[1].decode(errors="replace")
        self._refuse(verdict, value)
        epoch = layout.Epoch.parse(value)
        if epoch is None:
            raise self._connection.unavailable(
                f"its epoch is called {value!r}: somebody else writes the keys of prefix "
                f"{self._settings.key_prefix!r}"
            )
        if verdict == b"NEW":
            why, replaced = (each.decode(errors="replace") for each in answer[3:])
            if answer[2]:
                why = self.memory.why_replaced(replaced)
            # A first start is no news, a loss in mid-run is.
            is_first = not newest and why == "the server held none"
            self._tell(logging.INFO if is_first else logging.WARNING, value, why)
        if not self.memory.admits(epoch.rank(answer[2])):
            raise epoch_memory.EpochEnded
        return epoch

    def _newest_name(self) -> str:
        newest = self.memory.newest
        return newest.name if newest else ""

    def _refuse(self, verdict: bytes, value: str) -> None:
        """Raise where the answer is a refusal."""
        if verdict == b"FORMAT":
            raise options.refusal(
                "key_prefix",
                self._settings.key_prefix,
                f"its keys have format {value}, this release writes format {layout.FORMAT}: "
                "run one release on all services, or choose another prefix.",
            )
        if verdict == b"CLOUD":
            raise options.refusal(
                "key_prefix",
                self._settings.key_prefix,
                f"its keys belong to the cloud {value!r}, and [{options.GROUP}] cloud_name is "
                f"{self._settings.cloud_name!r}: choose another prefix, or correct cloud_name.",
            )
        if verdict == b"OLD":
            raise self._connection.unavailable(self.memory.refusal(value))

    def _tell(self, level: int, name: str, why: str) -> None:
        """Say that an epoch was begun."""
        LOG.log(
            level,
            "Began epoch %(new)s on %(server)s: %(why)s. Host states are published anew",
            {"new": name, "server": self._connection.label, "why": why},
        )

    def read(self, script: scripts.Script, *arguments: Any) -> tuple[layout.Epoch, list[Any]]:
        """Run a script that changes nothing, in the epoch in force."""

        def ask() -> tuple[layout.Epoch, list[Any]]:
            epoch = self.current()
            answer = self._connection.read(script, self._keys.all, epoch.name, *arguments)
            return epoch, _in_force(answer)

        return self.across(ask)

    def run(
        self,
        epoch: layout.Epoch,
        script: scripts.Script,
        *arguments: Any,
        on_sent: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """Run a script that changes something, once; see :meth:`.Connection.run`.

        :raises EpochEnded: nothing was changed; a revision of the old epoch will lose
        """
        answer = self._connection.run(
            script, self._keys.all, epoch.name, *arguments, on_sent=on_sent
        )
        return _in_force(answer)

    def note_version(self, epoch: layout.Epoch, version: int) -> None:
        """Remember that an epoch stood at a version."""
        self.memory.note_version(epoch.name, version)

    def version_seen(self) -> tuple[str, int]:
        """Return the newest epoch and the highest version seen in it; ask before a read."""
        name = self._newest_name()
        return name, self.memory.version_seen(name)

    def has_gone_back(self, epoch: layout.Epoch, version: int, seen: tuple[str, int]) -> bool:
        """Note the head of an epoch; where it is below what was seen, begin another.

        :param seen: as :meth:`version_seen` said before the head was asked for
        """
        if self.is_behind(epoch, version, seen):
            self.renew()
            return True
        self.note_version(epoch, version)
        return False

    def is_behind(self, epoch: layout.Epoch, version: int, seen: tuple[str, int]) -> bool:
        """Return whether the head of an epoch is below what was seen; then it has to end.

        :param seen: see :meth:`has_gone_back`
        """
        if seen[0] != epoch.name or version >= seen[1]:
            return False
        self.memory.note_gone_back(epoch.name)
        return True


def _in_force(answer: list[Any]) -> list[Any]:
    """Return what a script answered in the epoch that it was run in."""
    if answer[0] == b"EPOCH":
        raise epoch_memory.EpochEnded
    return answer
