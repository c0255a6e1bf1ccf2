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
from typing import Any

from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.redis import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.redis import layout, options, scripts, steps

LOG = log.getLogger(__name__)

#: More changes of epoch than this during one call are no accident.
ATTEMPTS = 10


class Epochs:
    """The epoch in force; any thread may call."""

    def __init__(
        self,
        settings: options.RedisOptions,
        connection: connection_module.Connection,
        keys: layout.Keys,
        observer: steps.Observer,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._keys = keys
        self._observer = observer
        self._known: layout.Epoch | None = None

    def forget(self) -> None:
        """Ask the server again at the next call."""
        self._known = None

    def current(self) -> layout.Epoch:
        """Return the epoch last known to be in force; scripts prove it."""
        return self._known or self.renew()

    def renew(self, why_anew: str = "") -> layout.Epoch:
        """Ask the server which epoch is in force; it begins one where it must.

        :param why_anew: begin one in any case, for this reason
        :raises ConfigurationError: the keys are another cloud's or release's
        """
        self._observer(steps.Step.EPOCH)
        try:
            answer = self._connection.run(
                scripts.EPOCH,
                self._keys.all,
                layout.FORMAT,
                self._settings.cloud_name,
                secrets.token_hex(8),
                why_anew,
            )
        except connection_module.ReplyLost as error:
            # Had it begun one, the next to ask finds it.
            raise self._connection.unavailable(error) from error
        verdict, value = answer[0], answer[1].decode(errors="replace")
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
        if verdict == b"NEW":
            # A first start is no news; a loss in mid-run is.
            LOG.log(
                logging.WARNING
                if self._known or answer[2] != b"the server held none"
                else logging.INFO,
                "Began epoch %(new)s on %(server)s: %(why)s. Host states are published anew",
                {
                    "new": value,
                    "server": self._connection.label,
                    "why": answer[2].decode(errors="replace"),
                },
            )
        epoch = layout.Epoch.parse(value)
        if epoch is None:
            raise self._connection.unavailable(
                f"its epoch is called {value!r}: somebody else writes the keys of prefix "
                f"{self._settings.key_prefix!r}"
            )
        self._known = epoch
        return epoch

    def read(self, script: scripts.Script, *arguments: Any) -> tuple[layout.Epoch, list[Any]]:
        """Run a script that changes nothing, in the epoch in force."""
        for _ in range(ATTEMPTS):
            epoch = self.current()
            answer = self._connection.read(script, self._keys.all, epoch.name, *arguments)
            if answer[0] != b"EPOCH":
                return epoch, answer
            self.renew()
        raise self.restless()

    def restless(self) -> errors.BackendUnavailable:
        """Return what to raise where epochs come and go."""
        return self._connection.unavailable("its epoch changes all the time")
