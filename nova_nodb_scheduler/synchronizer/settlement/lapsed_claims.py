# SPDX-License-Identifier: Apache-2.0
"""Claims of processes that are gone: who wrote them, how lapsed ones are noted and forgotten."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.replication import heartbeats
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

#: Begins the name by which a conductor takes claims; then come its host and a uuid.
CONDUCTOR = "conductor"
#: In a conductor's heartbeats: by which name it takes claims.
CLAIMS_AS = "claims_as"
#: Begins the name of who says that the request is over for which it wrote; then comes its own.
#: To a release that does not know it that is the name of a process that is gone.
GIVEN_UP = "given-up"


@attrs.frozen
class LivingConductor:
    """A conductor that beats.

    :param since: when it began, in back-end seconds
    :param claims_as: by which name it takes claims; empty where its beats do not say so (yet)
    """

    since: float
    claims_as: str = ""

    @classmethod
    def from_beat(cls, beat: Mapping[str, Any]) -> LivingConductor:
        return cls(float(beat.get("since", 0.0)), str(beat.get(CLAIMS_AS) or ""))

    def may_be(self, held: model.HeldClaim) -> bool:
        """Say whether it may have taken a claim: by its name, and had it begun by its end."""
        ended = held.deadline_seconds
        return self.claims_as in ("", held.writer) and (ended is None or self.since <= ended)


def conductors_of(beats: Iterable[Mapping[str, Any]]) -> dict[str, list[LivingConductor]]:
    """Return the conductors among reporters that live, by host.

    :param beats: of reporters, those that live
    """
    found: dict[str, list[LivingConductor]] = {}
    for beat in beats:
        if beat.get("binary") == CONDUCTOR:
            found.setdefault(str(beat.get("host")), []).append(LivingConductor.from_beat(beat))
    return found


def writer_is_gone(
    held: model.HeldClaim,
    schedulers: Collection[str],
    conductors: Mapping[str, Collection[LivingConductor]],
) -> bool:
    """Say whether a claim's writer is none of those that live.

    A scheduler takes claims by the name of its heartbeat. Whose request is over is gone as
    far as the claim goes: that scheduler itself says so. A conductor's heartbeats say by which
    name it takes claims; of one whose beats do not, it counts as gone only if no such conductor
    of its host lives, or none that had begun when the claim's lease ended.

    :param schedulers: names of those that live
    :param conductors: those that live, by host
    """
    role, _, rest = held.writer.partition(":")
    if role == GIVEN_UP:
        return True
    if role != CONDUCTOR:
        return held.writer not in schedulers
    return not any(each.may_be(held) for each in conductors.get(rest.rpartition(":")[0], ()))


def anybody_claims(snapshot: store_snapshot.Snapshot, since_seconds: float) -> bool:
    """Say whether a scheduler that judges claims has a heartbeat no older than that.

    :param since_seconds: by the back end's clock
    """
    return any(
        beat.get("claiming") and float(beat.get("beat_at", 0.0)) >= since_seconds
        for _, beat in snapshot.namespace(known_namespaces.SCHEDULERS.name).states()
    )


class ClaimWriters:
    """Tells who is gone; one thread, no I/O.

    :param own: this worker's name; it always lives
    :param silent_seconds: a heartbeat that did not change for that long, by this process's
        own clock, is a dead process's. So nobody is gone before this one has looked
        for that long
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        own: str,
        silent_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._own = own
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._schedulers = heartbeats.Heartbeats(store, known_namespaces.SCHEDULERS.name)
        self._reporters = heartbeats.Heartbeats(store, known_namespaces.REPORTERS.name)
        self._begun_at: float | None = None
        self._living_schedulers: frozenset[str] = frozenset()
        self._living_conductors: dict[str, list[LivingConductor]] = {}

    def forget(self) -> None:
        """Begin to look anew: of another epoch the heartbeats are still to come."""
        self._begun_at = None
        self._schedulers.forget()
        self._reporters.forget()

    def look(self) -> None:
        """Take in the heartbeats; before each round of questions."""
        now = self._clock()
        if self._begun_at is None:
            self._begun_at = now
        schedulers = self._schedulers.alive(now, self._silent_seconds)
        reporters = self._reporters.alive(now, self._silent_seconds)
        self._living_schedulers = schedulers | {self._own}
        view = self._store.snapshot().namespace(known_namespaces.REPORTERS.name)
        self._living_conductors = conductors_of(
            found.state for name in reporters if (found := view.get(name)) is not None
        )

    def gone(self, held: model.HeldClaim) -> bool:
        """Say whether a claim's writer does not live any more."""
        if self._begun_at is None or self._clock() - self._begun_at < self._silent_seconds:
            return False
        return writer_is_gone(held, self._living_schedulers, self._living_conductors)


def forget_lapsed(
    synchronizer: contract.Synchronizer,
    cache: record_editor.RecordCache,
    ids_by_host: Mapping[str, Mapping[str, str]],
) -> int:
    """Drop what hosts' records remember of some claims; return of how many hosts.

    Who loses against another write leaves it: a second call does the rest. Blocks for
    a read and a write.

    :param cache: where who claims here finds what was written
    :param ids_by_host: claim ids by consumer
    :raises BackendUnavailable: nobody knows what was dropped
    """
    return _edit_lapsed(
        synchronizer, cache, ids_by_host, lambda read: read.without_lapsed(ids_by_host[read.host])
    )


def note_lapsed(
    synchronizer: contract.Synchronizer,
    cache: record_editor.RecordCache,
    lapsed_by_host: Mapping[str, Mapping[str, model.HeldClaim]],
) -> int:
    """Have hosts' records remember claims as lapsed; return how many records now do.

    Neither a claim nor what is remembered already is changed. Who loses against another
    write leaves it: a second call does the rest. Blocks for a read and a write.

    :param cache: where who claims here finds what was written
    :param lapsed_by_host: claims by consumer
    :raises BackendUnavailable: nobody knows what was noted
    """
    return _edit_lapsed(
        synchronizer,
        cache,
        lapsed_by_host,
        lambda read: read.with_lapsed(lapsed_by_host[read.host]),
    )


def give_up(
    synchronizer: contract.Synchronizer,
    cache: record_editor.RecordCache,
    ids_by_host: Mapping[str, Mapping[str, str]],
    writer: str,
) -> int:
    """Have hosts' records tell that a writer's requests are over; return how many records now do.

    Who loses against another write leaves it: a second call does the rest. Blocks for
    a read and a write.

    :param cache: where who claims here finds what was written
    :param ids_by_host: ids of its lapsed and confirmed claims by consumer
    :raises BackendUnavailable: nobody knows what was noted
    """
    name = f"{GIVEN_UP}:{writer}"
    return _edit_lapsed(
        synchronizer,
        cache,
        ids_by_host,
        lambda read: read.given_up(ids_by_host[read.host], name),
    )


def read_claims(
    synchronizer: contract.Synchronizer, hosts: Collection[str]
) -> dict[str, model.ClaimRecord]:
    """Return hosts' claim records as the back end has them now; without those of newer releases.

    :raises BackendUnavailable: nobody can tell
    """
    return {host: read for host, (read, _) in _read(synchronizer, hosts).items()}


def _edit_lapsed(
    synchronizer: contract.Synchronizer,
    cache: record_editor.RecordCache,
    hosts: Collection[str],
    change: Callable[[model.ClaimRecord], model.ClaimRecord],
) -> int:
    """Change what hosts' records remember; return of how many that was done."""
    if not hosts:
        return 0
    epoch = cache.epoch
    writes = []
    for read, revision in _read(synchronizer, hosts).values():
        left = change(read)
        if left is not read:
            key = claim_rules.host_key(read.host)
            schema = known_namespaces.CLAIM_RECORDS.schema
            payload = codec.encode(left.to_state(), schema, record=str(key))
            writes.append(records.Write(key, revision, payload))
    results = synchronizer.write(writes) if writes else ()
    for result in results:
        cache.note(result.record, result.epoch or epoch)
    return sum(result.won for result in results)


def _read(
    synchronizer: contract.Synchronizer, hosts: Collection[str]
) -> dict[str, tuple[model.ClaimRecord, int]]:
    """Return claim records and their revisions by host; without those that nobody here reads."""
    found = synchronizer.read([claim_rules.host_key(host) for host in hosts])
    claims: dict[str, tuple[model.ClaimRecord, int]] = {}
    for host in hosts:
        record = found.get(claim_rules.host_key(host))
        if record is None or record.deleted:
            claims[host] = model.ClaimRecord(host), 0 if record is None else record.revision
            continue
        try:
            decoded = codec.decode(record.payload)
            codec.check_readable(decoded.schema, known_namespaces.CLAIM_RECORDS)
            state: Any = decoded.state
            held = model.ClaimRecord.from_state(host, state, record.version)
        except errors.UndecodableRecord as error:
            LOG.warning("Claims of %(host)s: %(error)s", {"host": host, "error": error})
            continue
        claims[host] = held, record.revision
    return claims
