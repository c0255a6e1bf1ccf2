# SPDX-License-Identifier: Apache-2.0
"""Ends claims that have served: settled, expired, or proved to be nobody's.

- A confirmed claim is *settled* once the records of its host's authorities show
  all of it: the provider its allocation, the node (later than the instance or
  the migration that names the host) what it takes of the node. What it counted
  is counted there; a view older than those records is refused from then on.
- A pending claim past its lease is *expired*.
- A confirmed claim that stays unshown is *reconciled*: its allocations are asked
  of their authority, after the claim was read, and it goes only if nothing
  stands behind it. Time alone never ends it.
- A group's record that nobody uses is *removed*, see :mod:`group_removal`.

Places in server groups likewise, but that they stay for a while once they are
shown: a request that was made before a member came names it not.

Each decision is made on the record as it was just read, see
:mod:`settling_endings`; who loses the compare-and-set is looked at next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import (
    contract,
    group_removal,
    latest_records,
    settling_endings,
    settling_evidence,
    settling_lingering,
    settling_questions,
    settling_rules,
    settling_status,
    settling_turns,
    settling_waiting,
    settling_watches,
)

_NODES = namespaces.COMPUTE_NODES.name
_PROVIDERS = namespaces.PROVIDERS.name
_INSTANCES = namespaces.INSTANCES.name
_MIGRATIONS = namespaces.MIGRATIONS.name


@attrs.frozen
class SettlingOptions:
    """Paces and bounds.

    :param batch_records: records read and written at once
    :param look_seconds: how often all records with claims are looked at, for
        what no change tells: a lease that ended, a claim that waits to be shown
    :param ask_after_seconds: how long a confirmed claim may be unshown before
        its allocations are asked for; doubled each time, up to the next
    :param hasten_seconds: the same after a change that hints at an end
    :param asks: questions to the authority that wait for an answer at once
    :param linger_seconds: how long a place in a group stays once it is shown;
        longer than anybody waits for a scheduler that has not begun (Nova's
        rpc_response_timeout) and than it then takes
    :param rest_seconds: how long a record is left alone after it was settled
    :param others_seconds: how long what another process owns is left to it
    :param keep_seconds: how long a group's record stays that nobody uses; the views
        that claim are younger, so that hardly any meets the floor
    :param removal_seconds: how often such records are looked for
    """

    batch_records: int = 128
    look_seconds: float = 5.0
    ask_after_seconds: float = 60.0
    ask_most_seconds: float = 600.0
    hasten_seconds: float = 2.0
    asks: int = 8
    linger_seconds: float = 90.0
    rest_seconds: float = 2.0
    others_seconds: float = 10.0
    keep_seconds: float = 3600.0
    removal_seconds: float = 60.0


class Settler:
    """Settles for all schedulers, or for one of them; one thread.

    Several may settle the same record: the compare-and-set decides.

    :param cursor: how far the store has come; None while that is not proved
    :param ask: called in a thread of its own once :attr:`questions` are started,
        else by the turns
    :param now_seconds: the back end's clock, without I/O
    :param clock: monotonic seconds
    :param is_own: see :class:`settling_turns.Turns`
    :param latest: where who claims here finds what was written
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        cursor: Callable[[], records.Cursor | None],
        ask: settling_questions.Ask,
        now_seconds: Callable[[], float],
        options: SettlingOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_own: Callable[[str], bool] | None = None,
        latest: latest_records.LatestRecords | None = None,
    ) -> None:
        self._store = store
        self._cursor = cursor
        self._now_seconds = now_seconds
        self._clock = clock
        self._is_own = is_own
        self._subscription = store.subscribe(
            (*settling_rules.LEDGERS, _NODES, _PROVIDERS, _INSTANCES, _MIGRATIONS)
        )
        self._waiting = settling_waiting.WaitingRecords(clock)
        #: Records to look at, in the order in which they came.
        self._due: dict[records.RecordKey, None] = {}
        self._look_at = float("-inf")
        latest = latest or latest_records.LatestRecords()
        self._removal = group_removal.GroupRemoval(synchronizer, latest)
        self.questions = settling_questions.Questions(ask)
        self.status = settling_status.SettlingStatus()
        self._endings = settling_endings.Endings(
            synchronizer, store, cursor, self._judge, latest, self.status
        )
        self.pace(options or SettlingOptions())

    def pace(self, options: SettlingOptions) -> None:
        """Settle by these paces and bounds from the next turn on, and look at everything then."""
        self._options = options
        self._watches = settling_watches.Watches(
            options.ask_after_seconds, options.ask_most_seconds, self._clock
        )
        self._turns = settling_turns.Turns(
            self._is_own, options.rest_seconds, options.others_seconds, self._clock
        )
        self._lingering = settling_lingering.Lingering(options.linger_seconds, self._clock)
        self._unused = group_removal.UnusedGroups(options.keep_seconds, self._clock)
        self._remove_at = float("-inf")
        self._begun = False

    @property
    def ready(self) -> bool:
        """Whether the store is proved, and with it the back end reached."""
        return self._cursor() is not None

    def turn(self, *, for_all: bool = True) -> bool:
        """Look at what changed and what is due; True if more is waiting.

        Blocks for a read and a write.

        :param for_all: also what is not this process's own
        :raises BackendUnavailable: what was not written is looked at again
        """
        # First the cursor: the snapshot holds all up to it, and perhaps more.
        cursor = self._cursor()
        if cursor is None:
            return False
        if for_all and not self._turns.for_all:
            # What was left alone until now is to be looked at.
            self._begun = False
        answers = self.questions.take()
        touched = self._subscription.drain()
        snapshot = self._store.snapshot()
        self._note(touched if self._begun else None, snapshot)
        if self._begun:
            self._note_answers(answers)
        self._begun = True
        self._due.update(dict.fromkeys(self._turns.begin(for_all=for_all)))
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + self._options.look_seconds
            self._look()
        evidence = settling_evidence.Evidence(snapshot)
        wanted = self._wanted(snapshot, evidence)
        try:
            if wanted:
                self._end(wanted, evidence, cursor)
        except BaseException:
            self._due.update(dict.fromkeys(wanted))
            raise
        if for_all and now >= self._remove_at:
            self._remove_at = now + self._options.removal_seconds
            unused = self._unused.look(snapshot, self._options.batch_records)
            if unused:
                self.status.removed += self._removal.remove(unused)
        return bool(self._due) or self.questions.answered

    def _look(self) -> None:
        """Find what no change tells: leases that ended, claims to be asked for."""
        now_seconds = self._now_seconds()
        for key, waiting in self._waiting.items():
            if (
                waiting.ends_seconds <= now_seconds
                or self._watches.is_due(key)
                or self._lingering.is_due(key)
                or self._turns.takes_over(key, waiting.since)
            ):
                self._due[key] = None

    def _note(
        self,
        touched: Mapping[str, Collection[str]] | None,
        snapshot: snapshot_module.Snapshot,
    ) -> None:
        if touched is None:
            self._waiting.clear()
            self._due.clear()
            self._watches.clear()
            self._endings.clear()
            self.questions.clear()
            self._lingering.clear()
            self._turns.clear()
            self._unused.clear()
            self._look_at = float("-inf")
            for name in settling_rules.LEDGERS:
                self._note_claims(name, snapshot.namespace(name).keys(), snapshot)
            return
        for name in settling_rules.LEDGERS:
            self._note_claims(name, touched.get(name, ()), snapshot)
        for name in (_NODES, _PROVIDERS):
            for uuid in touched.get(name, ()):
                key = records.RecordKey(namespaces.CLAIM_RECORDS.name, uuid)
                waiting = self._waiting.get(key)
                if waiting is None:
                    continue
                self._due[key] = None
                if name == _PROVIDERS:
                    allocated = settling_evidence.allocated_on(snapshot, uuid)
                    self._watches.note_allocated(key, allocated, self._options.hasten_seconds)
        self._due.update(dict.fromkeys(self._waiting.of_servers(touched, snapshot)))
        for key, ending in self._waiting.ending(touched, snapshot).items():
            self._watches.hasten(key, ending, self._options.hasten_seconds)

    def _note_claims(
        self, name: str, keys: Iterable[str], snapshot: snapshot_module.Snapshot
    ) -> None:
        for each in keys:
            key = records.RecordKey(name, each)
            if self._waiting.note(key, snapshot) is not None:
                self._due[key] = None
            else:
                self._watches.forget(key)
                self._lingering.forget(key)

    def _note_answers(self, answers: Iterable[settling_questions.Answer]) -> None:
        for answer in answers:
            if answer.allocations is None:
                self.status.unanswered += 1
                continue
            self._endings.note(answer)
            self._due[answer.question.key] = None

    def _wanted(
        self, snapshot: snapshot_module.Snapshot, evidence: settling_evidence.Evidence
    ) -> dict[records.RecordKey, frozenset[Any]]:
        """Return the records to change, with the entries to ask for, taken off what is due."""
        wanted: dict[records.RecordKey, frozenset[Any]] = {}
        asks = self._options.asks - self.questions.count
        for key in list(self._due):
            if len(wanted) >= self._options.batch_records:
                break
            del self._due[key]
            stored = snapshot.namespace(key.namespace).get(key.key)
            waiting = self._waiting.get(key)
            if stored is None or waiting is None:
                self._endings.forget(key)
                continue
            if not self._turns.allows(key, waiting.since):
                continue
            verdict = self._judge(key, stored.state, stored.version, evidence)
            under_way = self.questions.under_way(key, verdict.unshown)
            to_ask = self._watches.to_ask(key, verdict.unshown, under_way, asks)
            asks -= len(to_ask)
            if verdict.ended or to_ask or self._endings.has_answers(key):
                wanted[key] = to_ask
        return wanted

    def _judge(
        self,
        key: records.RecordKey,
        state: Mapping[str, Any],
        version: int,
        evidence: settling_evidence.Evidence,
    ) -> settling_rules.Verdict:
        ledger = settling_rules.LEDGERS[key.namespace]
        verdict = ledger.judge(key.key, state, version, evidence, self._now_seconds())
        return self._lingering.judged(key, verdict) if ledger.lingers else verdict

    def _end(
        self,
        wanted: Mapping[records.RecordKey, frozenset[Any]],
        evidence: settling_evidence.Evidence,
        cursor: records.Cursor,
    ) -> None:
        ended = self._endings.end(wanted, evidence, cursor)
        if ended is None:
            self._begun = False
            return
        for key in ended.written:
            self._turns.wrote(key)
        self._due.update(dict.fromkeys(ended.lost))
        # Last: where no thread asks, nothing that is to be written waits for them.
        self.status.asked += len(ended.questions)
        self.questions.put(ended.questions)
