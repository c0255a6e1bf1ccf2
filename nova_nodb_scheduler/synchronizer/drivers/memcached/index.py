# SPDX-License-Identifier: Apache-2.0
"""The index: names of all records, so that snapshots find them and losses show.

memcached cannot list its keys. A name is put on its index page before the
record's first write, and taken off before the record is removed, so at every
instant a name on a page has an item. An item that is missing although its name
stands on the page was evicted.

The naive way to put a name there, ``append``, breaks that: a creator that is held
up before it, while its record is created by another, deleted and collected, lists
a name without an item. So the page is read first, then the item is seen to be
there, then the page is compared and set: for the item to go in between, its name
must have come to the page and gone. (An ``append`` also answers NOT_STORED in a
full server, as it does of a page that was evicted.)
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable

import attrs

from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout, steps
from nova_nodb_scheduler.synchronizer.drivers.support import batches, record_names

#: A page is rewritten by compare-and-set; who loses that often tries again later.
ATTEMPTS = 5
#: What a reader of the whole index asks for at once.
PAGES_PER_READ = 16


@attrs.define(eq=False)
class Index:
    """The index of the epoch in force; any thread may call."""

    _connection: connection_module.Connection
    _epochs: epochs_module.Epochs
    _at: steps.Observer

    def absent(self, epoch: layout.Epoch, names: Collection[bytes]) -> set[bytes]:
        """Return those of the names that stand on no page.

        :raises EpochBroken: a page was evicted
        """
        by_page = self._by_page(epoch, names)
        found = self._connection.get(list(by_page))
        self._require(epoch, by_page, found)
        return {
            name
            for page, wanted in by_page.items()
            for name in wanted - layout.decode_page(found[page])
        }

    def add(self, epoch: layout.Epoch, names: Collection[bytes]) -> set[bytes]:
        """Put names on their pages; returns those that stand there.

        The others have no item any more, or their page changes all the time.

        :raises EpochBroken: a page was evicted
        """
        listed: set[bytes] = set()
        for _ in range(ATTEMPTS):
            todo = set(names) - listed
            if not todo:
                break
            listed |= self._add_once(epoch, todo)
        return listed

    def _add_once(self, epoch: layout.Epoch, names: Collection[bytes]) -> set[bytes]:
        by_page = self._by_page(epoch, names)
        held = self._connection.gets(list(by_page))
        self._require(epoch, by_page, held)
        items = self._connection.get([epoch.record_key(name) for name in names])
        alive = {
            name
            for name in names
            if epoch.record_key(name) in items
            and layout.Item.decode(items[epoch.record_key(name)]).kind is not layout.Kind.COLLECTED
        }
        listed: set[bytes] = set()
        added: list[set[bytes]] = []
        commands: list[bytes] = []
        for page, wanted in by_page.items():
            value, token = held[page]
            standing = layout.decode_page(value)
            listed |= wanted & standing
            absent = (wanted & alive) - standing
            if absent:
                added.append(absent)
                longer = value + layout.encode_page(sorted(absent))
                commands.append(connection_module.store(b"cas", page, longer, token=token))
        if commands:
            self._at(steps.Step.INDEX)
            lines = self._connection.send_all(commands)
            for absent, line in zip(added, lines, strict=True):
                if line == b"STORED":
                    listed |= absent
        return listed

    def check_not_evicted(self, epoch: layout.Epoch, names: Collection[bytes]) -> None:
        """Tell an evicted record from one that was never there.

        The page must be the same before and after the record was looked for:
        then the name stood on it while the record was missing. Where another was
        put on it meanwhile nothing is told yet, and it is looked again: the naive way,
        to take the record for absent then, creates anew what was evicted.

        :raises EpochBroken: a record was evicted, or a page
        :raises BackendUnavailable: the page changes all the time
        """
        doubtful = set(names)
        for _ in range(ATTEMPTS):
            doubtful = self._changed_under(epoch, doubtful)
            if not doubtful:
                return
        raise self._connection.unavailable("its index changes all the time")

    def _changed_under(self, epoch: layout.Epoch, names: Collection[bytes]) -> set[bytes]:
        """Return which missing names stand on pages that changed while they were looked for."""
        by_page = self._by_page(epoch, names)
        before = self._connection.gets(list(by_page))
        items = self._connection.get([epoch.record_key(name) for name in names])
        after = self._connection.gets(list(by_page))
        self._require(epoch, by_page, before)
        self._require(epoch, by_page, after)
        changed: set[bytes] = set()
        for page, wanted in by_page.items():
            standing = layout.decode_page(before[page][0]) & layout.decode_page(after[page][0])
            missing = {name for name in wanted & standing if epoch.record_key(name) not in items}
            if before[page] != after[page]:
                changed |= missing
            elif missing:
                raise self._epochs.broken(epoch, f"record {record_names.decode(min(missing))}")
        return changed

    def remove_collected(self, epoch: layout.Epoch, names: Collection[bytes]) -> set[bytes]:
        """Take collected tombstones off their pages, then away; returns the names that are gone.

        Anybody may do this, and anybody may die doing it: the next one ends
        it. The page is read before the record is seen to be collected, so a
        record that is created anew meanwhile changes the page under us.
        """
        gone: set[bytes] = set()
        for page, wanted in self._by_page(epoch, names).items():
            for _ in range(ATTEMPTS):
                if self._remove_from_page(epoch, page, wanted):
                    gone |= wanted
                    break
        return gone

    def pages(self, epoch: layout.Epoch) -> Iterable[set[bytes]]:
        """Read all names, some pages at a time.

        :raises EpochBroken: a page was evicted
        """
        for pages in batches.split(epoch.index_pages, PAGES_PER_READ):
            found = self._connection.get(pages)
            self._require(epoch, pages, found)
            yield set().union(*(layout.decode_page(found[page]) for page in pages))

    def _remove_from_page(self, epoch: layout.Epoch, page: bytes, names: Collection[bytes]) -> bool:
        held = self._connection.gets([page])
        self._require(epoch, [page], held)
        value, page_token = held[page]
        items = self._connection.gets([epoch.record_key(name) for name in names])
        collected = {
            name: items[epoch.record_key(name)][1]
            for name in names
            if epoch.record_key(name) in items
            and layout.Item.decode(items[epoch.record_key(name)][0]).kind is layout.Kind.COLLECTED
        }
        standing = layout.decode_page(value)
        if standing & collected.keys():
            rest = layout.encode_page(sorted(standing - collected.keys()))
            self._at(steps.Step.UNLIST)
            command = connection_module.store(b"cas", page, rest, token=page_token)
            if self._connection.send_all([command]) != (b"STORED",):
                return False
        if collected:
            self._at(steps.Step.REMOVE)
        # Stored with a time to live in the past, an item is removed, and that
        # only if it still is what was seen.
        self._connection.send_all(
            [
                connection_module.store(
                    b"cas", epoch.record_key(name), b"", ttl_seconds=-1, token=token
                )
                for name, token in collected.items()
            ]
        )
        return True

    def _require(
        self, epoch: layout.Epoch, pages: Iterable[bytes], found: Collection[bytes]
    ) -> None:
        if any(page not in found for page in pages):
            raise self._epochs.broken(epoch, "a page of the index")

    @staticmethod
    def _by_page(epoch: layout.Epoch, names: Iterable[bytes]) -> dict[bytes, set[bytes]]:
        pages: dict[bytes, set[bytes]] = collections.defaultdict(set)
        for name in names:
            pages[epoch.index_key(name)].add(name)
        return pages
