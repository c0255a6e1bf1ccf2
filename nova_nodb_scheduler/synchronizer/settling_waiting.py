# SPDX-License-Identifier: Apache-2.0
"""Which records have claims, whose they are, and since when they wait to be settled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.store import stored_record
from nova_nodb_scheduler.synchronizer import settling_rules

LOG = logging.getLogger(__name__)

_INSTANCES = namespaces.INSTANCES.name
_MIGRATIONS = namespaces.MIGRATIONS.name


@attrs.frozen
class Waiting:
    """A record with claims.

    :param ends_seconds: when the first lease in it ends, by the back end's clock
    :param since: monotonic seconds when one of its claims last ended, or the first came
    """

    consumers: frozenset[str]
    ends_seconds: float
    entries: frozenset[Any]
    since: float


class WaitingRecords:
    """All records with claims, as one store shows them; one thread.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[records.RecordKey, Waiting] = {}
        self._by_consumer: dict[str, set[records.RecordKey]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._records.clear()
        self._by_consumer.clear()

    def get(self, key: records.RecordKey) -> Waiting | None:
        """Return what is known of a record; None if it has no claims."""
        return self._records.get(key)

    def items(self) -> Iterator[tuple[records.RecordKey, Waiting]]:
        """Iterate over all."""
        return iter(self._records.items())

    def note(self, key: records.RecordKey, snapshot: snapshot_module.Snapshot) -> Waiting | None:
        """Take in a record as it is now; None if it has no claims, or none that can be read."""
        before = self._forget(key)
        stored = snapshot.namespace(key.namespace).get(key.key)
        if stored is None:
            return None
        ledger = settling_rules.LEDGERS[key.namespace]
        try:
            entries = ledger.entries(key.key, stored.state, stored.version)
        except (errors.NodbError, AttributeError, KeyError, TypeError, ValueError) as error:
            LOG.warning("Claims of %(key)s: %(error)s", {"key": key, "error": error})
            return None
        if not entries:
            return None
        leases = (held.deadline_seconds for held in entries.values())
        here = frozenset(entries)
        goes_on = before is not None and before.entries <= here
        made = Waiting(
            frozenset(map(ledger.consumer, entries)),
            min((at for at in leases if at is not None), default=float("inf")),
            here,
            before.since if before is not None and goes_on else self._clock(),
        )
        self._records[key] = made
        for consumer in made.consumers:
            self._by_consumer.setdefault(consumer, set()).add(key)
        return made

    def of_servers(
        self, touched: Mapping[str, Collection[str]], snapshot: snapshot_module.Snapshot
    ) -> set[records.RecordKey]:
        """Return the records with claims of servers whose instance or migration changed."""
        found: set[records.RecordKey] = set()
        for each in touched.get(_INSTANCES, ()):
            found |= self._by_consumer.get(each.partition("@")[0], set())
        migrations = snapshot.namespace(_MIGRATIONS)
        for each in touched.get(_MIGRATIONS, ()):
            for consumer in migrations.indexed(each, "instance") or ():
                found |= self._by_consumer.get(consumer, set())
        return found

    def ending(
        self, touched: Mapping[str, Collection[str]], snapshot: snapshot_module.Snapshot
    ) -> dict[records.RecordKey, set[Any]]:
        """Return the entries by record whose servers changed as they do when they leave.

        The instance is gone or in error, or a migration changed; not each of
        the many saves of one that is being built.
        """
        instances = snapshot.namespace(_INSTANCES)
        consumers = {
            consumer
            for each in touched.get(_INSTANCES, ())
            if (consumer := each.partition("@")[0]) in self._by_consumer
            and _may_leave(instances.get(each))
        }
        migrations = snapshot.namespace(_MIGRATIONS)
        for each in touched.get(_MIGRATIONS, ()):
            consumers.update(migrations.indexed(each, "instance") or ())
        found: dict[records.RecordKey, set[Any]] = {}
        for consumer in consumers:
            for key in self._by_consumer.get(consumer, ()):
                ledger = settling_rules.LEDGERS[key.namespace]
                of_consumer = {
                    entry
                    for entry in self._records[key].entries
                    if ledger.consumer(entry) == consumer
                }
                found.setdefault(key, set()).update(of_consumer)
        return found

    def _forget(self, key: records.RecordKey) -> Waiting | None:
        waiting = self._records.pop(key, None)
        for consumer in waiting.consumers if waiting is not None else ():
            left = self._by_consumer[consumer]
            left.discard(key)
            if not left:
                del self._by_consumer[consumer]
        return waiting


def _may_leave(instance: stored_record.StoredRecord | None) -> bool:
    if instance is None:
        return True
    row = instance.state.get("row") or {}
    return row.get("vm_state") == "error" or row.get("task_state") == "deleting"
