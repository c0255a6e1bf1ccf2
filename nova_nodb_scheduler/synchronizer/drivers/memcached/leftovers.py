# SPDX-License-Identifier: Apache-2.0
"""Leftovers: what epochs that are not in force hold, and who gives that memory back.

memcached cannot list its keys. So an epoch is put on a list before the first of its keys
is laid down, and taken off behind the last that is removed: whoever dies while one begins
or ends, at whatever step, leaves its name there, and a later collection ends the work.

The naive way, to remove whatever is listed and not in force, takes the keys from under
one that is about to be put in force by who stood still since they were laid down. Bases of
revisions tell: an epoch takes the place of one with a lower base only, so none with a base
below that of the epoch in force ever will. Of another, who lays it down has the cas token of
the epoch it is to replace in hand before its name is listed: so the epoch in force is stored
anew, and if that succeeds, no token from before is good.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout, steps
from nova_nodb_scheduler.synchronizer.drivers.support import batches

LOG = logging.getLogger(__name__)

#: Keys removed in one collection, and as many more as stand on a page of the index.
SWEEP_LIMIT = 5000
#: What a sweep reads of the index at once.
PAGES_PER_READ = 16
#: The list is rewritten by compare-and-set: by all at once where an epoch broke.
ATTEMPTS = 20
#: Between two attempts at most, and as much longer with each.
PAUSE_SECONDS = 0.002


@attrs.define(eq=False)
class Leftovers:
    """The list of epochs that keys may be of; any thread may call."""

    _prefix: bytes
    _connection: connection_module.Connection
    _at: steps.Observer

    @property
    def list_key(self) -> bytes:
        """Where the list stands."""
        return layout.epoch_list_key(self._prefix)

    def enter(self, *epochs: layout.Epoch) -> None:
        """Put epochs on the list: before the first key of one is laid down, or one ends.

        :raises BackendUnavailable: the server did not answer
        """
        entered = {epoch.name: epoch.revision_base for epoch in epochs}
        self._edit(steps.Step.LIST, lambda listed: {**listed, **entered})

    def sweep(self, epoch: layout.Epoch, limit: int | None = None) -> int:
        """Give back the memory of an epoch that is not in force, and never will be.

        The counter goes first, so that writers who are still at it stop. A page of the
        index goes behind the records that stand on it, so that another can go on from there.

        :param limit: of records and pages to be removed; the last page may exceed it
        :returns: how many were removed; below the limit nothing is left, nor the epoch listed
        """
        self._at(steps.Step.SWEEP)
        self.delete([epoch.sequence_key])
        removed = 0
        for pages in batches.split(epoch.index_pages, PAGES_PER_READ):
            found = self._connection.get(pages)
            keys: list[bytes] = []
            for page in filter(found.__contains__, pages):
                if limit is not None and removed >= limit:
                    break
                names = layout.decode_page(found[page])
                keys += [*map(epoch.record_key, names), page]
                removed += len(names) + 1
            self.delete(keys)
            if limit is not None and removed >= limit:
                return removed
        self.delete([epoch.floor_key, epoch.stable_key, *epoch.deletion_log_pages])
        self.strike(epoch)
        return removed

    def sweep_listed(
        self, in_force: layout.Epoch, value: bytes, shut_out: Callable[[], bool]
    ) -> None:
        """Sweep what is listed and never will be in force; bounded work per call.

        :param in_force: as it was behind the reading of the list
        :param value: the list
        :param shut_out: makes sure that nothing listed takes the place of the epoch in
            force; says whether it did
        """
        left = SWEEP_LIMIT
        for name, base in layout.decode_epochs(value).items():
            if left <= 0:
                return
            if name == in_force.name or (base >= in_force.revision_base and not shut_out()):
                continue
            left -= self.sweep(layout.Epoch(self._prefix, name, base), left)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove keys, in their order.

        :raises BackendUnavailable: those before some key were removed
        """
        self._connection.send_all([b"delete %s\r\n" % key for key in keys])

    def strike(self, epoch: layout.Epoch) -> None:
        """Take an epoch off the list; where that fails it is swept again.

        :raises BackendUnavailable: the server did not answer
        """
        self._edit(
            steps.Step.DELIST,
            lambda listed: {name: base for name, base in listed.items() if name != epoch.name},
        )

    def _edit(self, step: steps.Step, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        """Rewrite the list, as far as the server has room for it and others let it.

        Epochs must begin and end without it, too: what is not listed is not swept, no more.
        """
        for attempt in range(ATTEMPTS):
            value, token = self._connection.gets([self.list_key]).get(self.list_key, (b"", None))
            listed = layout.decode_epochs(value)
            changed = change(listed)
            if changed == listed:
                return
            self._at(step)
            command = connection_module.store(
                b"add" if token is None else b"cas",
                self.list_key,
                layout.encode_epochs(changed),
                token=token,
            )
            replies = self._connection.send([command])
            if replies.failure:
                raise self._connection.unavailable(replies.failure)
            [line] = replies.lines
            if line == b"STORED":
                return
            if b"ERROR" in line:
                why = line.decode(errors="replace")
                break
            time.sleep(random.uniform(0.0, PAUSE_SECONDS * (attempt + 1)))
        else:
            why = "it changes all the time"
        LOG.info("The list of memcached's epochs stays as it is: %(why)s", {"why": why})
