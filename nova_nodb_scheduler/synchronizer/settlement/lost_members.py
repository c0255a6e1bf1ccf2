# SPDX-License-Identifier: Apache-2.0
"""Members of server groups that are on their way to a host, kept through a back end's loss.

A Redis or memcached that is restarted forgets who has a place in which group. A member that
has reached its host is published again with its instance. One that is on its way, for as long
as its build or its move takes, nobody would know of, and another would be sent against the
policy: for good, since no look behind it sees both.

Every living worker held the record until then. So it

* counts what it knows beside each record that a place is judged by (:meth:`LostMembers.of`),
  from the moment on at which the back end's epoch is not the store's any more;
* notes it again in the new epoch, for those who begin there and for conductors, which keep no
  store. As it was, by the same id: who comes second finds it, and its writer gives it back by it.

Noted again it is a place like any other: it ends once its instance shows it on the host, or once
Placement, asked a minute later, has nothing behind it (:mod:`.settlement_worker`). So a member
that was deleted meanwhile keeps no other away for longer. What cannot be noted counts here for
ten minutes: a build that takes longer while the back end is away is nobody's to tell of.

The naive way, to note *all* places again, brings back what nobody means to use: of a pending one
the claim on the host is lost with it, so that whoever took it finds it gone and takes the
allocation back. Those alone that were confirmed lead to a server. Each process remembers its own
confirms for a while, for the feed may not have brought the last ones before the loss. What the
last moments brought of *others*, within a feed's delay, only these know, until they note it.

In the same way a member is kept that was placed while the back end did not answer.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid as uuid_module
from collections.abc import Callable, Iterator, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims, records
from nova_nodb_scheduler.model import group_claims as model
from nova_nodb_scheduler.scheduling.facts import group_members
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract, step_thread
from nova_nodb_scheduler.synchronizer.claims import group_places, group_rules
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.synchronizer.settlement import settlement_rules

LOG = logging.getLogger(__name__)

#: Remembered by one process; what comes beyond is not. Each is a server on its way.
MOST_MEMBERS = 10_000
#: How long one counts that cannot be noted again, and what a silent feed brought last.
KEPT_SECONDS = 600.0
#: How long a process remembers its own confirms: longer than a feed that is followed is behind.
RECENT_SECONDS = 90.0
#: Between two turns while something is to be noted.
_TURN_SECONDS = 0.2
#: The same where the back end did not answer.
_AWAY_SECONDS = 1.0
#: Groups whose records are read and written in one turn.
_TURN_GROUPS = 64

_GROUPS = known_namespaces.GROUP_CLAIMS
_INSTANCES = known_namespaces.INSTANCES.name
_MIGRATIONS = known_namespaces.MIGRATIONS.name
_NODES = known_namespaces.COMPUTE_NODES.name

#: What a record that cannot be understood makes its readers raise.
_NOT_READ = (
    *(errors.UndecodableRecord, errors.InvalidRecord, errors.PayloadTooLarge),
    *(AttributeError, KeyError, TypeError, ValueError),
)

#: Of one group.
Members = Mapping[model.Place, model.Member]


@attrs.frozen
class LostMember:
    """One that a back end does not tell of.

    :param since: when that was learned, or when it was confirmed; monotonic seconds
    :param noted: the place in the feed at which a record has it again; None before
    """

    member: model.Member
    since: float
    noted: records.Cursor | None = None


class LostMembers(group_places.MemberMemory):
    """Those of one worker.

    :param cache: where who claims here finds what was written
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        cache: record_editor.RecordCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._follower = follower
        self._cache = cache
        self._clock = clock
        self._editor = record_editor.RecordEditor(synchronizer, [_GROUPS])
        self._lock = threading.Lock()
        self._lost: dict[str, dict[model.Place, LostMember]] = {}
        self._count = 0
        #: Confirmed here lately, the oldest first.
        self._recent: dict[tuple[str, model.Place], LostMember] = {}
        #: Hosts by node as the store had them: the back end has nodes only once they are
        #: published again, and places in groups are hosts' names.
        self._names: Mapping[str, str] = {}
        self._names_since = float("-inf")
        self._wake = threading.Event()
        self._stopping = False
        self._thread = step_thread.StepThread(
            "nodb-lost-members", self._step, lambda error: None, lambda running: None
        )

    def __len__(self) -> int:
        return self._count

    # -- what is asked and told while requests are decided --------------------------------

    def of(self, group_uuid: str, epoch: str | None) -> Members:
        """See :class:`group_places.MemberMemory`."""
        # First the epoch: once it is the new one, all that the former one had was taken in.
        is_other = epoch is None or epoch != self._follower.epoch
        if not is_other and not self._lost:
            return {}
        found: dict[model.Place, model.Member] = {}
        if is_other and (epoch is not None or self._heard_lately()):
            found.update(_confirmed(self._store.snapshot(), group_uuid))
        latest = self._clock() - KEPT_SECONDS
        with self._lock:
            if is_other:
                found.update(
                    (place, each.member)
                    for (group, place), each in self._young()
                    if group == group_uuid
                )
            for place, each in self._lost.get(group_uuid, {}).items():
                if each.since >= latest:
                    found[place] = each.member
        return found

    def _heard_lately(self) -> bool:
        age = self._follower.status().fetch_age_seconds
        return age is not None and age < KEPT_SECONDS

    def stand(self, group_uuid: str, members: Members) -> None:
        """See :class:`group_places.MemberMemory`."""
        now = self._clock()
        with self._lock:
            for place, member in members.items():
                self._recent.pop((group_uuid, place), None)
                self._recent[group_uuid, place] = LostMember(member, now)
            while self._recent:
                name, oldest = next(iter(self._recent.items()))
                if oldest.since >= now - RECENT_SECONDS and len(self._recent) <= MOST_MEMBERS:
                    break
                del self._recent[name]

    def left(self, group_uuid: str, ids: Mapping[model.Place, str]) -> None:
        """See :class:`group_places.MemberMemory`."""
        with self._lock:
            for place, member_id in ids.items():
                recent = self._recent.get((group_uuid, place))
                if recent is not None and recent.member.claim_id == member_id:
                    del self._recent[group_uuid, place]
                lost = self._lost.get(group_uuid, {}).get(place)
                if lost is not None and lost.member.claim_id == member_id:
                    self._drop(group_uuid, [place])

    def add(self, group_uuid: str, place: model.Place, writer: str) -> str:
        """See :class:`group_places.MemberMemory`."""
        member = model.Member(claims.ClaimState.CONFIRMED, str(uuid_module.uuid4()), writer)
        with self._lock:
            self._keep(group_uuid, place, LostMember(member, self._clock()))
        self._wake.set()
        return member.claim_id

    def place_of(self, uuid: str) -> str:
        """See :class:`group_places.MemberMemory`."""
        name = group_members.place_of(self._store.snapshot(), uuid)
        return self._names.get(uuid, uuid) if name == uuid else name

    # -- what is lost ---------------------------------------------------------------------

    def outlive(self, former: store_snapshot.Snapshot) -> None:
        """Remember the members whose places the back end lost with its data; no I/O.

        :param former: of the store, before it was emptied
        """
        now = self._clock()
        found = {
            (group, place): LostMember(member, now)
            for group in former.namespace(_GROUPS.name).keys()  # noqa: SIM118 - no mapping
            for place, member in _confirmed(former, group).items()
        }
        with self._lock:
            # Its own first: nobody else may know of them.
            own = {name: attrs.evolve(each, since=now) for name, each in self._young()}
            self._recent.clear()
            found = {**own, **found}
            kept = sum(self._keep(*name, each) for name, each in found.items())
        nodes = former.namespace(_NODES)
        names = ((node, nodes.indexed(node, "host")) for node in nodes.keys())  # noqa: SIM118
        known = {node: place[0] for node, place in names if place is not None}
        self._names, self._names_since = {**self._names, **known}, now
        self._wake.set()
        if not found:
            return
        LOG.warning(
            "The back end lost its claims: %(kept)d members of server groups that were on their "
            "way to a host are noted again, %(dropped)d more are forgotten.",
            {"kept": kept, "dropped": len(found) - kept},
        )

    def turn(self) -> bool:
        """Note in the present epoch what is not; without I/O where nothing is lost.

        Says whether there is more than one turn does. Nothing is noted before the store is
        whole again: of servers that it shows elsewhere by then no place is, such as after a
        worker slept for an hour.

        Blocks for a read and a write a group.

        :raises BackendUnavailable: it is noted later
        """
        self._forget_old()
        moment = replicator.followed_snapshot(self._store, self._follower)
        if moment is None or not self._lost:
            return False
        cursor, snapshot = moment
        evidence = settlement_rules.SettlementEvidence(snapshot)
        count = 0
        due = self._due(cursor, snapshot)
        for group, members in due:
            lost = {place: _as_of(each.member, evidence, place) for place, each in members.items()}
            key = group_rules.group_key(group)
            note = functools.partial(group_rules.note_lost, lost=lost)
            try:
                edited = self._editor.edit(key, group_rules.on_group(key, note))
            except _NOT_READ as error:
                # Nobody here judges by it either; the other groups' are noted.
                LOG.warning("Members of %(key)s stay lost: %(error)s", {"key": key, "error": error})
                self._noted(group, members, cursor)
                continue
            if isinstance(edited, record_editor.Edited) and edited.record is not None:
                epoch = edited.epoch or cursor.epoch
                self._cache.note(edited.record, epoch)
                self._noted(group, members, records.Cursor(epoch, edited.record.version))
                count += edited.answer
        if count:
            LOG.info(
                "%(count)d places in server groups that the back end lost are noted again.",
                {"count": count},
            )
        return len(due) == _TURN_GROUPS

    def _due(
        self, cursor: records.Cursor, snapshot: store_snapshot.Snapshot
    ) -> list[tuple[str, Mapping[model.Place, LostMember]]]:
        """Return what is to be noted now, by group; forget what the store tells of."""
        due: list[tuple[str, Mapping[model.Place, LostMember]]] = []
        with self._lock:
            for group in list(self._lost):
                members = self._lost[group]
                told = [place for place, each in members.items() if _is_told(each, cursor)]
                left = {
                    place: each
                    for place, each in members.items()
                    if each.noted is None or each.noted.epoch != cursor.epoch
                }
                over = [place for place in left if _rests_elsewhere(snapshot, place)]
                self._drop(group, [*told, *over])
                left = {place: each for place, each in left.items() if place not in over}
                if left:
                    due.append((group, left))
                if len(due) == _TURN_GROUPS:
                    break
        return due

    def _noted(
        self, group: str, members: Mapping[model.Place, LostMember], at: records.Cursor
    ) -> None:
        with self._lock:
            here = self._lost.get(group, {})
            for place, each in members.items():
                if here.get(place) is each:
                    here[place] = attrs.evolve(each, noted=at)

    def _forget_old(self) -> None:
        latest = self._clock() - KEPT_SECONDS
        with self._lock:
            old = {
                group: [place for place, each in members.items() if each.since < latest]
                for group, members in self._lost.items()
            }
            for group, places in old.items():
                self._drop(group, places)
        if self._names_since < latest:
            self._names = {}
        count = sum(map(len, old.values()))
        if count:
            LOG.warning(
                "%(count)d places in server groups could not be noted again in time; "
                "nova-compute's own look at the groups' policies is left.",
                {"count": count},
            )

    # -- under the lock -------------------------------------------------------------------

    def _young(self) -> Iterator[tuple[tuple[str, model.Place], LostMember]]:
        latest = self._clock() - RECENT_SECONDS
        return ((name, each) for name, each in self._recent.items() if each.since >= latest)

    def _keep(self, group: str, place: model.Place, lost: LostMember) -> bool:
        """Remember a member, the newest word of it; False where there is no room."""
        is_new = place not in self._lost.get(group, {})
        if is_new and self._count >= MOST_MEMBERS:
            return False
        self._lost.setdefault(group, {})[place] = lost
        self._count += is_new
        return True

    def _drop(self, group: str, places: list[model.Place]) -> None:
        members = self._lost[group]
        for place in places:
            del members[place]
        self._count -= len(places)
        if not members:
            del self._lost[group]

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; in the worker, after it has forked."""
        self._stopping = False
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the thread; idempotent. What is not noted by then this process forgets."""
        self._stopping = True
        self._wake.set()
        self._thread.stop(timeout_seconds)

    def _step(self, stop: threading.Event) -> None:
        self._wake.clear()
        if not self._lost and not self._stopping:
            self._wake.wait(KEPT_SECONDS if self._names else None)
        pause = _AWAY_SECONDS
        try:
            pause = 0.0 if self.turn() else _TURN_SECONDS
        except errors.NodbError as error:
            LOG.info("Members of server groups are not noted now: %(why)s", {"why": error})
        finally:
            if self._lost:
                stop.wait(pause)


def _confirmed(snapshot: store_snapshot.Snapshot, group: str) -> dict[model.Place, model.Member]:
    """Return the confirmed members of a group's record, as another epoch may have them."""
    stored = snapshot.namespace(_GROUPS.name).get(group)
    if stored is None:
        return {}
    try:
        record = model.GroupRecord.from_state(group, stored.state, stored.version)
    except _NOT_READ:
        return {}
    # Versions of two epochs do not compare.
    return {
        place: attrs.evolve(record.members[place], confirmed_by=None)
        for place in group_rules.confirmed(record)
    }


def _as_of(
    member: model.Member, evidence: settlement_rules.SettlementEvidence, place: model.Place
) -> model.Member:
    """Return a member as it is noted: what this epoch shows of it was read behind its confirm."""
    shown_at = evidence.place_shown_at(place)
    if shown_at is None:
        return member
    return attrs.evolve(member, confirmed_by=max(1, shown_at - 1))


def _is_told(lost: LostMember, cursor: records.Cursor) -> bool:
    """Say whether a store that came to a place in the feed has seen a member noted."""
    noted = lost.noted
    return noted is not None and noted.epoch == cursor.epoch and noted.version <= cursor.version


def _rests_elsewhere(snapshot: store_snapshot.Snapshot, place: model.Place) -> bool:
    """Say whether a server's own record shows that it does not come to a place any more.

    Nova gives a server a task before it asks for a host, and takes that away at the end of
    what came of it; and what an epoch holds was read behind all that the former one lost.
    """
    consumer, host = place
    if snapshot.namespace(_MIGRATIONS).lookup("instance", consumer):
        return False
    if group_members.place_of(snapshot, host) in group_members.hosts_of(snapshot, consumer):
        return False
    instances = snapshot.namespace(_INSTANCES)
    found = (instances.get(f"{consumer}@{cell}") for cell in instances.vocabulary("cell").texts())
    try:
        rows = [each.state["row"] for each in found if each is not None]
        return bool(rows) and all(
            row.get("task_state") is None and (row.get("host") or row.get("vm_state") == "error")
            for row in rows
        )
    except _NOT_READ:
        # It tells nothing: Placement is asked of the place in a minute.
        return False
