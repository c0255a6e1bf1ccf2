# SPDX-License-Identifier: Apache-2.0
"""Epochs in memcached: who starts one, and when one is given up.

All keys of an epoch carry its name. Everything an epoch needs is laid down
before its name is published by ``add``, so whoever reads the name finds the
rest; what is missing later was evicted, and then nothing can be trusted.
What is left of one that is not in force is :mod:`.leftovers`' affair.
"""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.memcached import clock as clock_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout, leftovers, options, steps
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory

LOG = log.getLogger(__name__)

_T = TypeVar("_T")


class EpochBroken(epoch_memory.EpochEnded):
    """Something that must be there is missing; a new epoch was begun."""


class Epochs(epoch_memory.EpochKeeper):
    """The epoch in force; any thread may call."""

    def __init__(
        self,
        settings: options.MemcachedOptions,
        connection: connection_module.Connection,
        clock: clock_module.ServerClock,
        observer: steps.Observer,
    ) -> None:
        super().__init__(connection.unavailable)
        self._settings = settings
        self._prefix = settings.key_prefix.encode()
        self._connection = connection
        self._clock = clock
        self._at = observer
        self._leftovers = leftovers.Leftovers(self._prefix, connection, observer)
        self.memory = epoch_memory.EpochMemory()
        self._known: layout.Epoch | None = None

    def get(
        self, keys_of: Callable[[layout.Epoch], Sequence[bytes]]
    ) -> tuple[layout.Epoch, dict[bytes, bytes]]:
        """Read some keys of the epoch in force; begins one where there is none.

        The epoch is read behind the keys, in the same request. The naive way, before
        them, takes what the end of an epoch dropped meanwhile for what was never there.
        So there may be no more of them than fit, see :data:`.connection.KEYS_BESIDE_EPOCH`.
        """
        return self.across(lambda: self._read(keys_of, self._connection.get, lambda value: value))

    def get_beside_counter(
        self, keys_of: Callable[[layout.Epoch], Sequence[bytes]]
    ) -> tuple[layout.Epoch, int, dict[bytes, bytes]]:
        """Read some keys of the epoch in force, and behind them its counter, which is remembered.

        :raises EpochBroken: the counter was evicted, or stands below what was seen of it
        """
        return self._beside_counter(self.get, keys_of, lambda value: value)

    def gets(
        self, keys_of: Callable[[layout.Epoch], Sequence[bytes]]
    ) -> tuple[layout.Epoch, dict[bytes, tuple[bytes, bytes]]]:
        """As :meth:`get`, with cas tokens."""
        return self.across(lambda: self._read(keys_of, self._connection.gets, lambda held: held[0]))

    def gets_beside_counter(
        self, keys_of: Callable[[layout.Epoch], Sequence[bytes]]
    ) -> tuple[layout.Epoch, int, dict[bytes, tuple[bytes, bytes]]]:
        """As :meth:`get_beside_counter`, with cas tokens."""
        return self._beside_counter(self.gets, keys_of, lambda held: held[0])

    def _beside_counter(
        self,
        ask: Callable[
            [Callable[[layout.Epoch], Sequence[bytes]]], tuple[layout.Epoch, dict[bytes, _T]]
        ],
        keys_of: Callable[[layout.Epoch], Sequence[bytes]],
        value_of: Callable[[_T], bytes],
    ) -> tuple[layout.Epoch, int, dict[bytes, _T]]:
        newest = self.memory.newest
        seen = self.memory.version_seen(newest.name) if newest else 0
        epoch, found = ask(lambda epoch: (*keys_of(epoch), epoch.sequence_key))
        counter = found.pop(epoch.sequence_key, None)
        if counter is None:
            raise self.broken(epoch, "the counter")
        version = int(value_of(counter))
        if newest is not None and newest.name == epoch.name and version < seen:
            raise self.gone_back(epoch, version)
        self.note_version(epoch, version)
        return epoch, version, found

    def _read(
        self,
        keys_of: Callable[[layout.Epoch], Sequence[bytes]],
        get: Callable[[Sequence[bytes]], dict[bytes, _T]],
        value_of: Callable[[_T], bytes],
    ) -> tuple[layout.Epoch, dict[bytes, _T]]:
        guess = self._known
        found = get([*(keys_of(guess) if guess else ()), self.key])
        held = found.pop(self.key, None)
        value = None if held is None else value_of(held)
        if guess and value == guess.encode() and self.memory.admits(guess.rank):
            return guess, found
        self._learn(value)
        raise epoch_memory.EpochEnded

    def current(self) -> layout.Epoch:
        """Return the epoch in force; begins one where there is none."""
        return self.get(lambda epoch: ())[0]

    @property
    def key(self) -> bytes:
        """Where the epoch in force is named."""
        return layout.epoch_key(self._prefix)

    def is_in_force(self, epoch: layout.Epoch, value: bytes | None) -> bool:
        """Tell by what stood at :attr:`key` whether an epoch was in force then.

        Not if this client knows a later one: then the address led to an older server.
        """
        return value == epoch.encode() and self.memory.admits(epoch.rank)

    def note_version(self, epoch: layout.Epoch, version: int) -> None:
        """Remember that an epoch stood at a version."""
        self.memory.note_version(epoch.name, version)

    def break_off(self, epoch: layout.Epoch, why: str, *, turns: int = 0) -> bool:
        """Replace an epoch by a new one; False if it is no longer in force.

        Safe to be called by several at once: one of them replaces it.

        :param turns: of the new one, see :class:`.epoch_memory.Rank`
        """
        # Before anything is laid down, see leftovers.
        token = self._token_of(epoch)
        if token is None:
            return False
        fresh = self._lay_down(epoch, turns)
        self._at(steps.Step.REPLACE)
        command = connection_module.store(b"cas", self.key, fresh.encode(), token=token)
        replaced = self._connection.send_all([command]) == (b"STORED",)
        if replaced:
            LOG.warning(
                "Began epoch %(new)s in place of %(old)s: %(why)s",
                {"new": fresh.name, "old": epoch.name, "why": why},
            )
        self._leftovers.sweep(epoch if replaced else fresh)
        return replaced

    def sweep_leftovers(self) -> None:
        """Give back what was left of epochs that began or ended half; bounded work per call."""
        key = self._leftovers.list_key
        epoch, found = self.get(lambda epoch: (key,))
        if key in found:
            self._leftovers.sweep_listed(epoch, found[key], lambda: self._bar(epoch))

    def _bar(self, epoch: layout.Epoch) -> bool:
        """Take all tokens away by which an epoch could be replaced; False where it was.

        In a full server, too: there is no memory for the same again.
        """
        token = self._token_of(epoch)
        if token is None:
            return False
        self._at(steps.Step.BAR)
        command = connection_module.store(b"cas", self.key, epoch.encode(), token=token)
        return self._connection.send([command]).lines == (b"STORED",)

    def _token_of(self, epoch: layout.Epoch) -> bytes | None:
        """Return the cas token by which an epoch may be replaced; None if it is not in force."""
        value, token = self._connection.gets([self.key]).get(self.key, (None, None))
        return token if value == epoch.encode() else None

    def broken(self, epoch: layout.Epoch, what: str) -> EpochBroken:
        """Break an epoch off because something is missing, and return what to raise."""
        self.break_off(
            epoch,
            f"{what} is missing: the server evicted it. Give memcached more memory "
            "(-m) and start it with -M; host states are published anew.",
        )
        return EpochBroken(what)

    def gone_back(self, epoch: layout.Epoch, version: int) -> EpochBroken:
        """Break an epoch off that stands below a version that was seen; return what to raise."""
        self.memory.note_gone_back(epoch.name)
        why = f"it stood at version {version}, below one that was seen"
        self.break_off(epoch, f"{why}: old data was restored")
        return EpochBroken(why)

    def begin_anew(self) -> None:
        """Replace whatever epoch is in force, on an operator's word."""
        self.across(self._begin_anew)

    def _begin_anew(self) -> None:
        value = self._connection.get([self.key]).get(self.key)
        if value is None:
            # Nothing stands in the way of a new one.
            self.current()
        elif not self.break_off(self._decode(value), "an operator asked for it"):
            raise epoch_memory.EpochEnded

    def _learn(self, value: bytes | None) -> None:
        """Note the epoch in force, or begin one.

        :raises ConfigurationError: it is another cloud's
        """
        if value is not None:
            epoch = self._decode(value)
            if self.memory.admits(epoch.rank):
                self._known = epoch
            else:
                self._replace_older()
            return
        fresh = self._lay_down()
        self._at(steps.Step.EPOCH)
        [line] = self._connection.send_all(
            [connection_module.store(b"add", self.key, fresh.encode())]
        )
        if line == b"STORED":
            LOG.info("Began epoch %(new)s: the server held none", {"new": fresh.name})
        else:
            self._leftovers.sweep(fresh)

    def _replace_older(self) -> None:
        """Put an epoch in the place of one that is older than one that was seen.

        :raises BackendUnavailable: that was done too lately
        """
        # Asked for again: the answer may have been on its way while another
        # thread learned of the next epoch.
        value = self._connection.get([self.key]).get(self.key)
        epoch = self._decode(value) if value is not None else None
        if epoch is None or self.memory.admits(epoch.rank):
            return
        if self.memory.pause_seconds():
            raise self._connection.unavailable(self.memory.refusal(epoch.name))
        self.break_off(epoch, self.memory.why_replaced(epoch.name), turns=self.memory.next_turn())

    def _decode(self, value: bytes) -> layout.Epoch:
        epoch = layout.Epoch.decode(self._prefix, value)
        self._check_cloud(epoch)
        return epoch

    def _check_cloud(self, epoch: layout.Epoch) -> None:
        cloud = self._settings.cloud_name
        if epoch.cloud != cloud:
            raise options.refusal(
                "key_prefix",
                self._settings.key_prefix,
                f"its keys belong to the cloud {epoch.cloud!r}, and [{options.GROUP}] cloud_name "
                f"is {cloud!r}: choose another prefix, or correct cloud_name.",
            )

    def _lay_down(self, old: layout.Epoch | None = None, turns: int = 0) -> layout.Epoch:
        """Store all an epoch needs but its name.

        :param old: what it is to replace
        """
        sample = self._clock.sample()
        epoch = layout.Epoch(
            self._prefix,
            uuid.uuid4().hex[:16] + (f"-{turns}" if turns else ""),
            self._next_base(sample, old),
            self._settings.cloud_name,
        )
        stable = layout.StableVersion(0, sample.seconds, sample.evictions)
        items = [
            (epoch.sequence_key, b"0"),
            (epoch.floor_key, b"0"),
            (epoch.stable_key, stable.encode()),
            *((page, b"") for page in (*epoch.index_pages, *epoch.deletion_log_pages)),
        ]
        self._leftovers.enter(*([] if old is None else [old]), epoch)
        try:
            self._connection.send_all(
                [connection_module.store(b"add", key, value) for key, value in items]
            )
        except errors.BackendUnavailable:
            # In a full server it would stand in everybody's way until it is collected. It stays
            # on the list: what was not answered may arrive yet.
            with contextlib.suppress(errors.BackendUnavailable):
                self._leftovers.delete([key for key, _value in items])
            raise
        return epoch

    def _next_base(self, sample: clock_module.Sample, old: layout.Epoch | None) -> int:
        """Return a base behind those of all epochs that were seen, whatever the clock says.

        Two epochs that begin in the same second differ by chance.
        """
        newest = self.memory.newest
        known = (newest.number if newest else 0, old.revision_base if old else 0)
        second = max(int(sample.seconds), 1 + (max(known) >> layout.BASE_BITS))
        return (second << layout.BASE_BITS) + secrets.randbits(layout.BASE_BITS)
