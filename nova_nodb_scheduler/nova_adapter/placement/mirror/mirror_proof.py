# SPDX-License-Identifier: Apache-2.0
"""What a scheduler asks about the mirror: may it be used, and was it current just now."""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_sweep as sweep_module
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader, provider_trees
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    tree_publisher as tree_publisher_module,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer.replication import ingest

#: Reasons for which the mirror is not used.
NEVER_SWEPT = "mirror never swept in this epoch"
TOO_OLD = "mirror too old"

#: Of a provider's record: what hosts are judged by besides what stands on them.
_JUDGED = ("broken", "inventories", "traits", "aggregates", "children")


@attrs.frozen
class MirrorProof:
    """What a comparison with Placement said of its mirror.

    :param changed: roots that differed; their records are published anew, or somebody
        else wrote them meanwhile
    :param version: highest version written for them: wait for it in the store
        before deciding again. 0 where nothing was written
    :param complete: False if more differed than may be read at once: then the
        request is Placement's to decide
    :param listed: roots that have room, by Placement
    :param touched: whether records of these came since the decision, of hosts that had
        room and have
    :param compared: of each root that differed the revision of its record; 0 where it has none
    """

    changed: frozenset[str]
    version: int = 0
    complete: bool = True
    listed: frozenset[str] = frozenset()
    touched: bool = False
    compared: Mapping[str, int] = attrs.field(factory=dict)


@attrs.define(eq=False, slots=False)
class PlacementMirror:
    """Placement's mirror as a scheduler uses it; any thread may call.

    :param snapshot: of this worker's store
    :param epoch: of that store; None while it is not proved complete
    :param now_seconds: the back end's time, without I/O
    :param bound_seconds: age beyond which the mirror is not used
    :param read_limit: most trees that a proof reads again
    :param unreadable: records that cannot be read now
    :param clock: monotonic seconds
    """

    _snapshot: Callable[[], snapshot_module.Snapshot]
    _epoch: Callable[[], str | None]
    _now_seconds: Callable[[], float]
    _reader: placement_reader.PlacementReader
    _trees: tree_publisher_module.TreePublisher = attrs.field(alias="tree_publisher")
    _bound_seconds: float
    _read_limit: int = 200
    _clock: Callable[[], float] = time.monotonic
    _unreadable: Callable[[], ingest.UnreadableRecords] = attrs.field(
        default=ingest.all_readable, kw_only=True
    )
    # Held while a comparison runs: one at a time, and who waits shares it.
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _last: _Proved | None = attrs.field(init=False, default=None)

    def age_seconds(self, snapshot: snapshot_module.Snapshot) -> float | None:
        """Return how long ago the last complete sweep began; None if none is known."""
        swept, now = _swept(snapshot), self._now_seconds()
        if swept is None or not backend_time.is_believed(float(swept["swept_from"]), now):
            return None
        return float(max(0.0, now - swept["swept_from"]))

    def refusal(self) -> str | None:
        """Return why the mirror may not be used now, None if it may. No I/O."""
        return refusal_of(self._snapshot(), self._epoch(), self._now_seconds(), self._bound_seconds)

    def prove_current(
        self,
        started_at: float,
        resources: Mapping[str, int],
        refused: Container[str] | None = None,
        seen: snapshot_module.Snapshot | None = None,
        crowded: frozenset[str] = frozenset(),
    ) -> MirrorProof:
        """Compare the mirror with Placement before "no valid host" is said.

        Placement lists the providers that have room for these resources now,
        with their generations: one request, which sees freed room that no
        generation shows, too. Those of which the mirror says otherwise are
        read and published. Threads that ask for the same share a listing that
        began after they took their snapshots.

        Blocks for one request to Placement, and some for each that differs,
        behind a comparison that is under way.

        :param started_at: when the decision's snapshot was taken, by this
            object's clock
        :param resources: of the request, by class
        :param refused: hosts that the decision left out for want of room; None
            for not known, which costs a look at every record listed
        :param seen: a snapshot that the decision is no older than. A record that
            came since agrees with Placement, but nobody was judged by it
        :param crowded: hosts that have room by the mirror as well, but not for all that
            is wanted of them: what stands there is read again
        :raises PlacementUnanswered: nothing is proved
        :raises BackendUnavailable: nothing is proved
        """
        amounts = ",".join(f"{name}:{resources[name]}" for name in sorted(resources))
        with self._lock:
            last = self._last
            if last is not None and last.serves(amounts, started_at, crowded):
                proof = last.proof
            else:
                began_at = self._clock()
                listing = self._reader.listing(
                    f"resources={urllib.parse.quote(amounts, safe=':,')}"
                )
                proof = attrs.evolve(
                    self._prove(listing, resources, refused, crowded),
                    listed=frozenset(listing.trees),
                )
                self._last = _Proved(amounts, began_at, crowded, proof)
        if proof.changed or seen is None:
            return proof
        changed, touched = self._came_since(seen, proof.listed, resources)
        return attrs.evolve(proof, changed=changed, touched=touched)

    def differs_from(
        self,
        seen: snapshot_module.Snapshot,
        proof: MirrorProof,
        resources: Mapping[str, int],
    ) -> bool:
        """Say whether hosts have room, by what a proof published, that a decision saw full.

        Or are not known yet. For who has waited for the proof's version. Others allocate
        all the time, and each time their host differs for a moment: as long as it has room
        before and after, a request that is refused need not be proved anew for that.

        :param seen: a snapshot that the decision is no older than
        """
        view = self._snapshot().namespace(known_namespaces.PROVIDERS.name)
        for root in proof.changed & proof.compared.keys():
            now = view.get(root)
            if (0 if now is None else now.revision) == proof.compared[root]:
                # Somebody else publishes what was read, or it is read once more.
                return True
        changed, _touched = self._came_since(seen, proof.listed, resources)
        return bool(changed)

    def _came_since(
        self, seen: snapshot_module.Snapshot, listed: Iterable[str], resources: Mapping[str, int]
    ) -> tuple[frozenset[str], bool]:
        """Return which of the roots that have room were not judged by what is known now.

        What others took or gave back meanwhile, and leaves room before and after, does not
        count: under load a request would never end. That there was some is told beside:
        what this process had reserved there may be over.
        """
        before = seen.namespace(known_namespaces.PROVIDERS.name)
        after = self._snapshot().namespace(known_namespaces.PROVIDERS.name)
        came = {
            root: (was, now)
            for root in listed
            if (now := after.get(root)) is not None
            and ((was := before.get(root)) is None or was.revision != now.revision)
        }
        changed = frozenset(
            root
            for root, (was, now) in came.items()
            if was is None or _judged_otherwise(was.state, now.state, resources)
        )
        return changed, len(came) > len(changed)

    def _prove(
        self,
        listing: provider_trees.ProviderListing,
        resources: Mapping[str, int],
        refused: Container[str] | None,
        crowded: frozenset[str],
    ) -> MirrorProof:
        name = known_namespaces.PROVIDERS.name
        # First these: one that is let go meanwhile is in the snapshot.
        unreadable = self._unreadable()
        view = self._snapshot().namespace(name)
        unread = unreadable.keys(name)
        moved, freed = [], []
        doubted: dict[str, Any] = {}
        compared = {}
        for root, members in listing.trees.items():
            own = next((member for member in members if member.uuid == root), None)
            if own is None:
                # Only a child has room: no candidate of the mirror's kind.
                continue
            record = view.get(root)
            state = None if record is None else record.state
            compared[root] = 0 if record is None else record.revision
            if state is None or root in unread or state["generation"] != own.generation:
                moved.append(root)
            elif refused is not None and root not in refused:
                continue
            elif not provider_trees.has_room(state, resources):
                freed.append(root)
            elif root in crowded:
                stands = state["allocations"]
                doubted[root] = {consumer: dict(stands[consumer]) for consumer in stands}
        if unreadable.overflowed(name):
            # Any of those that are listed may be among them.
            return MirrorProof(frozenset(), complete=False)
        proof = self._read_again(moved, freed, doubted, unread)
        return attrs.evolve(proof, compared={root: compared[root] for root in proof.changed})

    def _read_again(
        self,
        moved: Sequence[str],
        freed: Sequence[str],
        doubted: Mapping[str, Any],
        unread: frozenset[str],
    ) -> MirrorProof:
        changed = frozenset((*moved, *freed, *doubted))
        if not changed or len(changed) > self._read_limit:
            return MirrorProof(changed, complete=not changed)
        looked = self._trees.allocations([*freed, *doubted])
        changed -= {root for root, stands in doubted.items() if looked.seen.get(root) == stands}
        began_at = self._trees.now_seconds()
        whole = [(root, self._reader.tree(root)) for root in sorted({*moved, *looked.whole})]
        read = self._trees.whole(whole, began_at)
        if not unread.isdisjoint(read.rejected):
            # A newer release wrote it, and it is not written over: it has room, by Placement.
            return MirrorProof(changed, complete=False)
        # What a scheduler wrote beside this reading is in the record already: whoever
        # decides again sees it, or is told again that the host differs.
        return MirrorProof(changed, max(looked.version, read.version))


def refusal_of(
    snapshot: snapshot_module.Snapshot,
    epoch: str | None,
    now_seconds: float,
    bound_seconds: float,
) -> str | None:
    """Return why a mirror may not be used, None if it may.

    :param epoch: of the snapshot; None while it is not proved complete
    :param bound_seconds: age beyond which it is not used
    """
    swept = _swept(snapshot)
    if swept is None or swept["epoch"] != epoch:
        return NEVER_SWEPT
    swept_from = backend_time.believed(float(swept["swept_from"]), now_seconds)
    return TOO_OLD if now_seconds - swept_from > bound_seconds else None


def _swept(snapshot: snapshot_module.Snapshot) -> Mapping[str, Any] | None:
    return snapshot.namespace(known_namespaces.MIRRORS.name).state(sweep_module.PLACEMENT)


def _judged_otherwise(
    was: Mapping[str, Any], now: Mapping[str, Any], resources: Mapping[str, int]
) -> bool:
    return any(was.get(part) != now.get(part) for part in _JUDGED) or not provider_trees.has_room(
        was, resources
    )


@attrs.frozen
class _Proved:
    """A comparison, of the resources that it was made for and when it began."""

    query: str
    began_at: float
    crowded: frozenset[str]
    proof: MirrorProof

    def serves(self, query: str, started_at: float, crowded: frozenset[str]) -> bool:
        """Say whether it is that of a decision, too."""
        return self.query == query and self.began_at > started_at and crowded <= self.crowded
