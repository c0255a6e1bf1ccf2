# SPDX-License-Identifier: Apache-2.0
"""All allocations without their server, for an operator: read once, proved as the finder does.

The finder looks at what claims suspect. Here every consumer counts that Placement's
mirror shows on a host and that states in memory do not know, or know on another host
without a move; each is then asked of Placement and of Nova's databases. Where no living
scheduler keeps the mirror (``candidates = placement``), or it was not compared in this
epoch, or not lately, Placement itself is asked provider by provider; so it is of trees
that cannot be mirrored, whose records say nothing of who stands there. A mirror that is
empty since the back end was would find nothing, and say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.orphans import orphan_verdicts
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_proof, placement_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from nova_nodb_scheduler.wire import codec, payload_packing

LOG = logging.getLogger(__name__)

_READ = (
    known_namespaces.COMPUTE_NODES,
    known_namespaces.INSTANCES,
    known_namespaces.MIGRATIONS,
    known_namespaces.PROVIDERS,
    known_namespaces.MIRRORS,
    known_namespaces.CLAIM_RECORDS,
    known_namespaces.SCHEDULERS,
    known_namespaces.REPORTERS,
)

_BATCH = 100

#: Questions in a row that Placement does not answer, before no more are asked for: each costs
#: a time-out.
_MOST_UNANSWERED = 3

#: What is shown: orphans, and those of which it cannot be told.
SHOWN = (*orphan_verdicts.ORPHANS, orphan_verdicts.AllocationKind.UNPROVED)


@attrs.frozen
class AuditRow:
    """One allocation without its server.

    :param hosts: names of its providers' hosts; a provider's uuid where it is no host's
    :param writer: who had claimed just that; empty where no claim tells
    :param age_seconds: since that claim's lease ended; None where it has none
    :param deletable: see :func:`.orphan_verdicts.is_for_nobody`
    :param outcome: of the deletion: ``deleted``, or why not; empty where none was tried
    """

    judged: orphan_verdicts.JudgedAllocation
    hosts: Sequence[str]
    writer: str
    age_seconds: float | None
    deletable: bool
    outcome: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        judged = self.judged
        found = judged.found
        return {
            "consumer": judged.consumer,
            "hosts": list(self.hosts),
            "resources": {name: dict(each) for name, each in judged.amounts.items()},
            "kind": judged.kind.value,
            "detail": found.detail if found is not None else "",
            "server_cell": found.cell if found is not None else "",
            "server_host": found.host if found is not None else "",
            "writer": self.writer,
            "age_seconds": self.age_seconds,
            "deletable": self.deletable,
            "outcome": self.outcome,
        }


class OrphanAudit:
    """One audit over one reading of the back end.

    :param synchronizer: opened
    :param silent_seconds: a beat that is older is a dead process's
    :param mirror_bound_seconds: age beyond which the mirror is not used
    :param get: asks Placement; here already, where nobody keeps the mirror
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        judge: orphan_verdicts.OrphanJudge,
        silent_seconds: float,
        mirror_bound_seconds: float,
        get: placement_reader.Get = placement_reader.get_from_placement,
    ) -> None:
        self._judge = judge
        self._reader = placement_reader.PlacementReader(get)
        self._snapshot, self._unread = _read(synchronizer)
        self._now_seconds = synchronizer.now_seconds()
        self._epoch = synchronizer.head().epoch
        self._mirror_bound_seconds = mirror_bound_seconds
        self._least_beat = self._now_seconds - silent_seconds
        # Whose heartbeat cannot be read may live.
        self._schedulers = self._unread[known_namespaces.SCHEDULERS.name].union(
            name for name, _ in self._living(known_namespaces.SCHEDULERS.name)
        )
        self._conductors = lapsed_claims.conductors_of(
            beat for _, beat in self._living(known_namespaces.REPORTERS.name)
        )
        self._suspects = orphan_verdicts.find_suspects(self._snapshot)
        #: Of Placement: what did not tell who stands where.
        self._unasked: list[str] = []
        self._unanswered = 0
        #: Hosts on which a consumer stands that no state in memory explains.
        self._on = self._orphan_allocations()

    @property
    def count(self) -> int:
        """How many consumers are to be looked at."""
        return len(self._consumers())

    @property
    def unseen(self) -> list[str]:
        """Records that cannot be read and may hide allocations from the audit, for people."""
        return [
            f"{namespace}/{records.printable_name(key)}"
            for namespace in (known_namespaces.PROVIDERS.name, known_namespaces.CLAIM_RECORDS.name)
            for key in sorted(self._unread[namespace])
        ] + [f"Placement's {what}" for what in self._unasked]

    def rows(self, progress: Callable[[int], None] = lambda looked: None) -> list[AuditRow]:
        """Return what is shown; blocks for a request each.

        :param progress: told how many consumers were looked at
        """
        found: list[AuditRow] = []
        for batch in _batches(self._consumers()):
            judged = self._judged(batch)
            found += [self._row(each) for each in judged.values() if each.kind in SHOWN]
            progress(len(batch))
        return found

    def delete(self, rows: Iterable[AuditRow]) -> list[AuditRow]:
        """Prove the deletable ones once more, and delete them; return all with outcomes."""
        done = []
        for row in rows:
            if not row.deletable:
                done.append(row)
                continue
            again = self._judged([row.judged.consumer])[row.judged.consumer]
            if again.kind is not row.judged.kind or again.generation != row.judged.generation:
                outcome = f"left: changed meanwhile, {again.kind.value}"
            elif self._judge.delete(again):
                outcome = "deleted"
            else:
                outcome = "left: changed by another, or no answer of Placement"
            done.append(attrs.evolve(row, outcome=outcome))
        return done

    def _consumers(self) -> list[str]:
        return sorted(self._suspects.keys() | self._on.keys())

    def _judged(self, consumers: Sequence[str]) -> dict[str, orphan_verdicts.JudgedAllocation]:
        suspected = {name: self._suspects.get(name, ()) for name in consumers}
        judged = self._judge.judge(suspected, self._snapshot, self._on)
        return {name: self._doubted(each) for name, each in judged.items()}

    def _doubted(
        self, judged: orphan_verdicts.JudgedAllocation
    ) -> orphan_verdicts.JudgedAllocation:
        """Take it back that a server is elsewhere, where nobody can read of whom a node is."""
        unread = judged.amounts.keys() & self._unread[known_namespaces.COMPUTE_NODES.name]
        if judged.kind is not orphan_verdicts.AllocationKind.ELSEWHERE or not unread:
            return judged
        found = judged.found
        return attrs.evolve(
            judged,
            kind=orphan_verdicts.AllocationKind.UNPROVED,
            found=found and attrs.evolve(found, detail="the node's record cannot be read"),
        )

    def _row(self, judged: orphan_verdicts.JudgedAllocation) -> AuditRow:
        claims = [each.held for each in judged.wrote]
        held = claims[0] if claims else None
        ended = held.deadline_seconds if held is not None else None
        return AuditRow(
            judged,
            [_name(self._snapshot, each) for each in sorted(judged.amounts)],
            held.writer if held is not None else "",
            None if ended is None else max(0.0, self._now_seconds - ended),
            orphan_verdicts.is_for_nobody(judged, self._gone),
        )

    def _gone(self, held: model.HeldClaim) -> bool:
        # A reporter's record alone tells of which host's conductor it is.
        is_conductors = held.writer.startswith(f"{lapsed_claims.CONDUCTOR}:")
        if is_conductors and self._unread[known_namespaces.REPORTERS.name]:
            return False
        return lapsed_claims.writer_is_gone(held, self._schedulers, self._conductors)

    def _orphan_allocations(self) -> dict[str, set[str]]:
        """Return hosts by consumers that stand there, and nowhere in memory or elsewhere."""
        found: dict[str, set[str]] = {}
        for host, consumers in self._allocations():
            for consumer in consumers:
                if orphan_verdicts.is_suspicious(self._snapshot, consumer, host):
                    found.setdefault(consumer, set()).add(host)
        return found

    def _allocations(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Return providers and their consumers: of the mirror, or of Placement."""
        if not self._is_mirrored():
            yield from self._asked(self._roots())
            return
        broken = []
        for root, state in self._snapshot.namespace(known_namespaces.PROVIDERS.name).states():
            if state.get("broken"):
                broken.append(root)
            else:
                yield root, state.get("allocations") or {}
        yield from self._asked(broken)

    def _is_mirrored(self) -> bool:
        """Say whether a scheduler keeps the mirror, and may use it."""
        if not lapsed_claims.anybody_claims(self._snapshot, self._least_beat):
            return False
        refusal = mirror_proof.refusal_of(
            self._snapshot, self._epoch, self._now_seconds, self._mirror_bound_seconds
        )
        return refusal is None

    def _roots(self) -> list[str]:
        """Return all of Placement's providers, or where it does not list them the hosts."""
        try:
            return sorted(self._reader.listing().trees)
        except placement_reader.PlacementUnanswered as error:
            LOG.info("Not all providers are known: %(error)s", {"error": error})
            self._unanswered += 1
            self._unasked.append("list of providers")
        nodes = known_namespaces.COMPUTE_NODES.name
        return [*self._snapshot.namespace(nodes).row_keys(), *sorted(self._unread[nodes])]

    def _asked(self, providers: Iterable[str]) -> Iterator[tuple[str, Iterable[str]]]:
        for provider in providers:
            if self._unanswered < _MOST_UNANSWERED:
                try:
                    found = self._reader.allocations(provider)
                except placement_reader.PlacementUnanswered as error:
                    LOG.info("Who is on a host is not known: %(error)s", {"error": error})
                    self._unanswered += 1
                else:
                    self._unanswered = 0
                    yield provider, () if found is None else found.by_consumer
                    continue
            self._unasked.append(f"provider {records.printable_name(provider)}")

    def _living(self, namespace: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [
            (name, beat)
            for name, beat in self._snapshot.namespace(namespace).states()
            if float(beat.get("beat_at", 0.0)) >= self._least_beat
        ]


def _batches(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[at : at + _BATCH] for at in range(0, len(names), _BATCH))


def _read(
    synchronizer: contract.Synchronizer,
) -> tuple[snapshot_module.Snapshot, Mapping[str, set[str]]]:
    """Return what the back end holds, and the keys of records that cannot be read, by namespace.

    The latter are left out. A server without its record is asked of Nova's databases all the same.

    :raises BackendUnavailable: it cannot be read
    """
    store = host_state_store.HostStateStore(
        _READ, codec.decode_state, packing=payload_packing.DictionaryPacking
    )
    unread: dict[str, set[str]] = {each.name: set() for each in _READ}
    for page in synchronizer.snapshot([each.name for each in _READ]).pages:
        for record in page:
            try:
                store.apply(records.Change(record, codec.decode_state(record.payload)))
            except (errors.UndecodableRecord, errors.InvalidRecord) as error:
                unread[record.key.namespace].add(record.key.key)
                LOG.warning(
                    "Record %(key)s is left out: %(error)s", {"key": record.key, "error": error}
                )
    return store.snapshot(), unread


def _name(snapshot: snapshot_module.Snapshot, provider: str) -> str:
    node = snapshot.namespace(known_namespaces.COMPUTE_NODES.name).state(provider)
    return provider if node is None else str(node["row"]["hypervisor_hostname"])
