# SPDX-License-Identifier: Apache-2.0
"""Which records have unsettled claims, and when each of them is to be looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.settlement import settlement_rules

LOG = logging.getLogger(__name__)

_INSTANCES = known_namespaces.INSTANCES.name
_MIGRATIONS = known_namespaces.MIGRATIONS.name


@attrs.frozen
class UnsettledRecord:
    """A record with claims.

    :param ends_seconds: when the first lease in it ends, by the back end's clock
    :param since: monotonic seconds when one of its claims last ended, or the first came
    """

    consumers: frozenset[str]
    ends_seconds: float
    entries: frozenset[Any]
    since: float


class UnsettledIndex:
    """All records with claims, as one store shows them; one thread.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[records.RecordKey, UnsettledRecord] = {}
        self._by_consumer: dict[str, set[records.RecordKey]] = {}
        #: As they were: of one that is over its record told whose it was.
        self._former_migrations: store_snapshot.NamespaceView | None = None

    def clear(self) -> None:
        """Forget all."""
        self._records.clear()
        self._by_consumer.clear()
        self._former_migrations = None

    def came_to(self, snapshot: store_snapshot.Snapshot) -> None:
        """Note that all changes up to a snapshot were looked at."""
        self._former_migrations = snapshot.namespace(_MIGRATIONS)

    def get(self, key: records.RecordKey) -> UnsettledRecord | None:
        """Return what is known of a record; None if it has no claims."""
        return self._records.get(key)

    def items(self) -> Iterator[tuple[records.RecordKey, UnsettledRecord]]:
        """Iterate over all."""
        return iter(self._records.items())

    def note(
        self, key: records.RecordKey, snapshot: store_snapshot.Snapshot
    ) -> UnsettledRecord | None:
        """Take in a record as it is now; None if it has no claims, or none that can be read."""
        before = self._forget(key)
        stored = snapshot.namespace(key.namespace).get(key.key)
        if stored is None:
            return None
        ledger = settlement_rules.LEDGERS[key.namespace]
        try:
            entries = ledger.entries(key.key, stored.state, stored.version)
        except settlement_rules.NOT_READ as error:
            LOG.warning("Claims of %(key)s: %(error)s", {"key": key, "error": error})
            return None
        if not entries:
            return None
        leases = (held.deadline_seconds for held in entries.values())
        here = frozenset(entries)
        goes_on = before is not None and before.entries <= here
        made = UnsettledRecord(
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
        self, touched: Mapping[str, Collection[str]], snapshot: store_snapshot.Snapshot
    ) -> set[records.RecordKey]:
        """Return the records with claims of servers whose instance or migration changed."""
        found: set[records.RecordKey] = set()
        for each in touched.get(_INSTANCES, ()):
            found |= self._by_consumer.get(each.partition("@")[0], set())
        for consumer in self.servers_of_moves(touched, snapshot):
            found |= self._by_consumer.get(consumer, set())
        return found

    def ending(
        self, touched: Mapping[str, Collection[str]], snapshot: store_snapshot.Snapshot
    ) -> dict[records.RecordKey, set[Any]]:
        """Return the entries by record whose servers changed as they do when they leave.

        The instance is gone or in error, or a migration changed or is over; not each of
        the many saves of one that is being built.
        """
        instances = snapshot.namespace(_INSTANCES)
        consumers = {
            consumer
            for each in touched.get(_INSTANCES, ())
            if (consumer := each.partition("@")[0]) in self._by_consumer
            and _may_leave(instances.get(each))
        }
        consumers |= self.servers_of_moves(touched, snapshot)
        found: dict[records.RecordKey, set[Any]] = {}
        for consumer in consumers:
            for key in self._by_consumer.get(consumer, ()):
                ledger = settlement_rules.LEDGERS[key.namespace]
                of_consumer = {
                    entry
                    for entry in self._records[key].entries
                    if ledger.consumer(entry) == consumer
                }
                found.setdefault(key, set()).update(of_consumer)
        return found

    def servers_of_moves(
        self, touched: Mapping[str, Collection[str]], snapshot: store_snapshot.Snapshot
    ) -> set[str]:
        """Return the servers whose migrations changed, those of migrations that are over too."""
        views = [self._former_migrations, snapshot.namespace(_MIGRATIONS)]
        return {
            consumer
            for view in views
            if view is not None
            for key in touched.get(_MIGRATIONS, ())
            for consumer in view.indexed(key, "instance") or ()
        }

    def _forget(self, key: records.RecordKey) -> UnsettledRecord | None:
        waiting = self._records.pop(key, None)
        for consumer in waiting.consumers if waiting is not None else ():
            left = self._by_consumer[consumer]
            left.discard(key)
            if not left:
                del self._by_consumer[consumer]
        return waiting


def _may_leave(instance: store_snapshot.StoredRecord | None) -> bool:
    if instance is None:
        return True
    row = instance.state.get("row") or {}
    return row.get("vm_state") == "error" or row.get("task_state") == "deleting"


class RecordOwnership:
    """Which records one process may settle now; one thread.

    Schedulers that spread their claims write different records: each settles those it
    prefers itself, or settling would take from it the compare-and-sets that spreading
    saved. Whoever settles for all takes what its owner leaves for long.

    :param is_own: whether a host, or a group, by its uuid, is this process's to
        prefer; None where nobody prefers any: then who settles for all settles
    :param cool_down_seconds: how long a record is left alone once it was written:
        claims come to it meanwhile
    :param others_seconds: how long a record of another process waits for it
    :param clock: monotonic seconds
    :ivar for_all: whether this process settles what others leave, as of the last turn
    """

    def __init__(
        self,
        is_own: Callable[[str], bool] | None,
        cool_down_seconds: float,
        others_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._is_own = is_own
        self._cool_down_seconds = cool_down_seconds
        self._others_seconds = others_seconds
        self._clock = clock
        self.for_all = False
        #: Until when each record rests.
        self._cooling: dict[records.RecordKey, float] = {}
        #: Records that are asked for again once they may be settled.
        self._put_off: dict[records.RecordKey, None] = {}

    def clear(self) -> None:
        """Forget all."""
        self._cooling.clear()
        self._put_off.clear()

    def begin(self, *, for_all: bool) -> list[records.RecordKey]:
        """Begin a turn; return records put off that may be looked at again.

        :param for_all: whether this process settles what others leave
        """
        self.for_all = for_all
        now = self._clock()
        for key in [key for key, until in self._cooling.items() if until <= now]:
            del self._cooling[key]
        ready = [key for key in self._put_off if key not in self._cooling]
        for key in ready:
            del self._put_off[key]
        return ready

    def wrote(self, key: records.RecordKey) -> None:
        """Note that a record was settled just now."""
        if self._cool_down_seconds:
            self._cooling[key] = self._clock() + self._cool_down_seconds

    def allows(self, key: records.RecordKey, since: float) -> bool:
        """Say whether a record may be settled now; one of our own is put off if not.

        :param since: monotonic seconds at which its claims began to wait
        """
        own = self._owns(key) or self.takes_over(key, since)
        if own and key in self._cooling:
            self._put_off[key] = None
            return False
        return own

    def takes_over(self, key: records.RecordKey, since: float) -> bool:
        """Say whether another process left its record for so long that it is settled here."""
        is_late = self.for_all and self._clock() >= since + self._others_seconds
        return is_late and not self._owns(key)

    def _owns(self, key: records.RecordKey) -> bool:
        return self.for_all if self._is_own is None else self._is_own(key.key)


class GracePeriods:
    """Since when records show claims that stay for a while all the same; one thread.

    A request names the members that its group had when it was made. One that waits
    for its turn, behind others or with a scheduler that sleeps, knows of members that
    came since by the group's record alone: were a place dropped as soon as an instance
    shows it, that request would be given the same host again.

    :param seconds: how long an entry stays then
    :param clock: monotonic seconds
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        #: By record, then by entry and what tells its takings apart.
        self._since: dict[records.RecordKey, dict[tuple[Any, str], float]] = {}

    def clear(self) -> None:
        """Forget all: another process may have settled meanwhile."""
        self._since.clear()

    def forget(self, key: records.RecordKey) -> None:
        """Forget a record that has no entries any more."""
        self._since.pop(key, None)

    def is_due(self, key: records.RecordKey) -> bool:
        """Say whether an entry of a record has been shown for long enough."""
        latest = self._clock() - self._seconds
        return any(since <= latest for since in self._since.get(key, {}).values())

    def judged(
        self, key: records.RecordKey, verdict: settlement_rules.SettlementVerdict
    ) -> settlement_rules.SettlementVerdict:
        """Return a verdict by which entries go once they were shown for long enough.

        One that was shown and is not any more has left: it goes at once.
        """
        now = self._clock()
        before = self._since.pop(key, {})
        shown = {each: before.get(each, now) for each in verdict.settled.items()}
        left = {each: before[each] for each in verdict.unshown.items() if each in before}
        if shown or left:
            self._since[key] = shown | left
        served = {each for each, since in shown.items() if since <= now - self._seconds}
        return attrs.evolve(
            verdict,
            settled=dict(served.union(left)),
            # That it left, a view knows that has come as far as the store.
            shown_at=settlement_rules.ALL_KNOWN if left else verdict.shown_at,
            unshown=dict(verdict.unshown.items() - left.keys()),
        )


@attrs.define
class _Reconciliation:
    """When a claim that no record shows is to be asked of the authority of allocations.

    :ivar missed_at: when to ask unless the allocation is seen until then; None if it is there
    """

    next_at: float
    pause_seconds: float
    missed_at: float | None = None

    def is_due(self, now: float) -> bool:
        return now >= self.next_at or (self.missed_at is not None and now >= self.missed_at)


class ReconcileSchedule:
    """When claims that no record shows are to be asked of their authority; one thread.

    :param after_seconds: how long a claim may be unshown before it is asked
        for; doubled each time
    :param most_seconds: between two questions
    :param clock: monotonic seconds
    """

    def __init__(
        self, after_seconds: float, most_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._after_seconds = after_seconds
        self._most_seconds = most_seconds
        self._clock = clock
        #: By record, then by entry and id.
        self._reconciliations: dict[records.RecordKey, dict[tuple[Any, str], _Reconciliation]] = {}
        #: When to ask for entries that a change hinted at before anybody looked at them.
        self._hinted: dict[records.RecordKey, dict[Any, float]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._reconciliations.clear()
        self._hinted.clear()

    def forget(self, key: records.RecordKey) -> None:
        """Forget a record that has no claims any more."""
        self._reconciliations.pop(key, None)
        self._hinted.pop(key, None)

    def keep(self, key: records.RecordKey, entries: Collection[Any]) -> None:
        """Forget hints to what is in a record no more.

        One that is another process's, and never empty, is looked at here for none of them.
        """
        hinted = self._hinted.pop(key, {})
        left = {entry: at for entry, at in hinted.items() if entry in entries}
        if left:
            self._hinted[key] = left

    def is_due(self, key: records.RecordKey) -> bool:
        """Say whether a claim of a record is to be asked for."""
        now = self._clock()
        return any(waiting.is_due(now) for waiting in self._reconciliations.get(key, {}).values())

    def hasten(
        self,
        key: records.RecordKey,
        entries: Collection[Any],
        seconds: float,
        kept: Collection[Any] = (),
    ) -> None:
        """Ask for some entries of a record in so many seconds at the latest.

        :param kept: those of which it holds, too, if nobody looked at them yet: their record
            rests, or is another's. Of others it may tell of before they were claimed
        """
        soon = self._clock() + seconds
        waits = self._reconciliations.get(key, {})
        for (entry, _), waiting in waits.items():
            if entry in entries:
                waiting.next_at = min(waiting.next_at, soon)
        unseen = set(kept).difference(entry for entry, _ in waits)
        if unseen:
            self._hinted.setdefault(key, {}).update(dict.fromkeys(unseen, soon))

    def note_allocated(
        self, key: records.RecordKey, allocated: Collection[Any], seconds: float
    ) -> None:
        """Note whose allocations a host's provider shows by now, all that was claimed.

        Who is missing, or shown with less, is asked for in so many seconds, unless another
        record shows it until then: a provider's record is written by several, each with
        what it knows, and lacks what another is about to add. A server that was to be
        resized on its host has less again where that failed.
        """
        soon = self._clock() + seconds
        for (entry, _), waiting in self._reconciliations.get(key, {}).items():
            if entry in allocated:
                waiting.missed_at = None
            elif waiting.missed_at is None:
                waiting.missed_at = soon

    def to_ask(
        self,
        key: records.RecordKey,
        unshown: Mapping[Any, str],
        under_way: Collection[Any],
        at_most: int,
    ) -> frozenset[Any]:
        """Return the entries of a record to ask for now, of those that are unshown.

        :param unshown: ids by entry; what is in it no more is forgotten
        :param under_way: entries that are being asked for
        """
        now = self._clock()
        before = self._reconciliations.pop(key, {})
        hinted = self._hinted.pop(key, {})
        first_at = now + self._after_seconds
        reconciliations = {
            each: before.get(each)
            or _Reconciliation(min(first_at, hinted.get(each[0], first_at)), self._after_seconds)
            for each in unshown.items()
        }
        if reconciliations:
            self._reconciliations[key] = reconciliations
        asked: set[Any] = set()
        for (entry, _), waiting in reconciliations.items():
            if waiting.is_due(now) and len(asked) < at_most and entry not in under_way:
                waiting.pause_seconds = min(2 * waiting.pause_seconds, self._most_seconds)
                waiting.next_at = now + waiting.pause_seconds
                waiting.missed_at = None
                asked.add(entry)
        return frozenset(asked)
