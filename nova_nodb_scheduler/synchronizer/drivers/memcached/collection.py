# SPDX-License-Identifier: Apache-2.0
"""Collection of tombstones: off the deletion log, the index and the server.

The log expires by itself. A tombstone goes in steps that anybody can end who
finds them half done: raise the floor, mark the tombstone as collected, take
its name off the index, remove it, take its name off the deletion log.

What is left of epochs that began or ended half goes as well: :mod:`.leftovers`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memcached import clock as clock_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import following, layout, steps, writing
from nova_nodb_scheduler.synchronizer.drivers.memcached import index as index_module

#: Tombstones looked at in one call.
COLLECTION_LIMIT = 5000
FLOOR_ATTEMPTS = 20


@attrs.define(eq=False)
class Collector:
    """Drops what is old; several may do so at once."""

    _connection: connection_module.Connection
    _clock: clock_module.ServerClock
    _epochs: epochs_module.Epochs
    _index: index_module.Index
    _follower: following.Follower
    _at: steps.Observer
    #: Page of the deletion log that the next call begins at. Were it always the first one,
    #: what is too young to go would fill the call, and later pages be never come to: they
    #: would grow to what the server takes as an item, and then refuse every deletion.
    _next_page: int = attrs.field(init=False, default=0)

    def collect(self, keep_seconds: float) -> contract.Collected:
        """Drop tombstones older than that; see the contract."""
        stable_version = self._follower.stabilise().version
        epoch, pages = self._epochs.gets(lambda epoch: epoch.deletion_log_pages)
        now_seconds = self._clock.sample().seconds
        collected, looked_at = 0, 0
        first = self._next_page
        for number in range(first, first + layout.DELETION_LOG_PAGES):
            page = epoch.deletion_log_page(number % layout.DELETION_LOG_PAGES)
            if page not in pages:
                raise self._epochs.broken(epoch, "a page of the deletion log")
            value, token = pages[page]
            names = layout.decode_deletions(value)
            if looked_at > COLLECTION_LIMIT:
                break
            looked_at += len(names)
            self._next_page = (number + 1) % layout.DELETION_LOG_PAGES
            count, done = self._collect_page(
                epoch, names, now_seconds, keep_seconds, stable_version
            )
            collected += count
            if done:
                self._strike_off(page, token, names, done)
        self._epochs.sweep_leftovers()
        return contract.Collected(collected, 0, self._follower.watermarks().floor)

    def _collect_page(
        self,
        epoch: layout.Epoch,
        names: Mapping[bytes, int],
        now_seconds: float,
        keep_seconds: float,
        stable_version: int,
    ) -> tuple[int, set[bytes]]:
        """Mark the old of one page as collected.

        :returns: how many tombstones went, and names the page need not hold
        """
        held = self._connection.gets([epoch.record_key(name) for name in names])
        done: set[bytes] = set()
        collected: set[bytes] = set()
        old: dict[bytes, tuple[layout.Item, bytes]] = {}
        for name, announced_seconds in names.items():
            value, token = held.get(epoch.record_key(name), (None, b""))
            if value is None:
                done.add(name)
                continue
            item = layout.Item.decode(value)
            if item.kind is layout.Kind.COLLECTED:
                collected.add(name)
            elif item.kind is layout.Kind.TOMBSTONE:
                # A floor above what is stable would turn readers away from
                # the very snapshot they take because of it.
                if item.since_seconds <= now_seconds - keep_seconds and (
                    item.version <= stable_version
                ):
                    old[name] = (item, token)
            elif announced_seconds < now_seconds - 2 * writing.ANNOUNCEMENT_VALID_SECONDS:
                # Alive, and its deletion is not on its way any more.
                done.add(name)
        if old:
            self._raise_floor(epoch, max(item.version for item, _ in old.values()))
        marked = self._mark_collected(epoch, old, now_seconds)
        done |= self._index.remove_collected(epoch, collected | marked)
        return len(marked), done

    def _mark_collected(
        self,
        epoch: layout.Epoch,
        old: Mapping[bytes, tuple[layout.Item, bytes]],
        now_seconds: float,
    ) -> set[bytes]:
        """Mark tombstones so that nobody writes over them; returns which are marked."""
        if old:
            self._at(steps.Step.MARK)
        lines = self._connection.send_all(
            [
                connection_module.store(
                    b"cas",
                    epoch.record_key(name),
                    attrs.evolve(
                        item, kind=layout.Kind.COLLECTED, since_seconds=now_seconds
                    ).encode(),
                    token=token,
                )
                for name, (item, token) in old.items()
            ]
        )
        return {name for name, line in zip(old, lines, strict=True) if line == b"STORED"}

    def _raise_floor(self, epoch: layout.Epoch, version: int) -> None:
        """Turn readers away whose cursor is below a tombstone, before it goes."""
        key = epoch.floor_key
        for _ in range(FLOOR_ATTEMPTS):
            held = self._connection.gets([key]).get(key)
            if held is None:
                raise self._epochs.broken(epoch, "the floor")
            if int(held[0]) >= version:
                return
            self._at(steps.Step.FLOOR)
            command = connection_module.store(b"cas", key, b"%d" % version, token=held[1])
            if self._connection.send_all([command]) == (b"STORED",):
                return
        raise self._connection.unavailable("the floor is contended")

    def _strike_off(
        self, page: bytes, token: bytes, names: Mapping[bytes, int], done: set[bytes]
    ) -> None:
        """Take names off a page of the deletion log.

        Where the page has changed meanwhile, a later call will do it.
        """
        rest = b"".join(
            layout.encode_deletion(name, seconds)
            for name, seconds in names.items()
            if name not in done
        )
        self._at(steps.Step.STRIKE)
        self._connection.send_all([connection_module.store(b"cas", page, rest, token=token)])
