# SPDX-License-Identifier: Apache-2.0
"""What a snapshot of the store proves of claims: that they are shown, or no longer needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.scheduling import (
    claim_facts,
    group_members,
    namespaces,
    shown,
)
from nova_nodb_scheduler.store import snapshot as snapshot_module

#: A consumer's allocations now, amounts by resource class by root provider.
Allocations = Mapping[str, Mapping[str, int]]

#: States of servers of which a compute service may hold no room yet.
_NOT_BUILT = (None, "building", "shelved_offloaded")


class Evidence:
    """What one snapshot shows; one thread."""

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = snapshot.namespace(namespaces.COMPUTE_NODES.name)
        self._instances = snapshot.namespace(namespaces.INSTANCES.name)
        self._migrations = snapshot.namespace(namespaces.MIGRATIONS.name)
        self._providers = snapshot.namespace(namespaces.PROVIDERS.name)
        self._claims = snapshot.namespace(namespaces.CLAIM_RECORDS.name)
        self._shown = shown.Shown(snapshot)

    # -- claims on hosts ------------------------------------------------------------

    def shown_at(self, host: str) -> int:
        """Return the version by which a view knows what the host's records show."""
        found = (self._nodes.get(host), self._providers.get(host))
        return max((record.version for record in found if record is not None), default=0)

    def is_shown(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a claim counts for nothing: others' records show all of it."""
        return self.is_allocated(host, consumer, held) and (
            held.node == model.NodeShare()
            or self._shown.counted(host, consumer, held.node) is shown.Counted.WHOLE
        )

    def is_allocated(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether the host's provider shows a consumer with what it claims."""
        record = self._providers.get(host)
        if record is None:
            return False
        allocated = (record.state.get("allocations") or {}).get(consumer, {})
        return bool(allocated) and not claim_facts.beyond(held.resources, held.node, allocated)

    def counts(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a claim counts for something that others' records do not count."""
        return not self.is_allocated(host, consumer, held) or self._shown.counted(
            host, consumer, held.node
        ) not in (shown.Counted.LIKELY, shown.Counted.WHOLE)

    def is_new(self, host: str, consumer: str, since: int) -> bool:
        """Say whether what links a server to a host was written after a version.

        An older record may be of a former stay there.
        """
        versions = [
            record.version
            for record in (
                self._instances.get(key) for key in self._keys(consumer) if self._stands(key, host)
            )
            if record is not None
        ]
        versions += [
            record.version
            for record in map(self._migrations.get, self._migrations.lookup("instance", consumer))
            if record is not None
        ]
        return max(versions, default=0) > since

    def is_needed(
        self, host: str, consumer: str, held: model.HeldClaim, allocations: Allocations
    ) -> bool:
        """Say whether anything stands behind a claim.

        :param allocations: the consumer's, asked of their authority after the
            claim was read
        """
        if host not in self._nodes:
            # Nobody chooses it. Should it come back, its first report counts who is there.
            return False
        allocated = allocations.get(host, {})
        if allocated and not claim_facts.beyond(held.resources, held.node, allocated):
            # Shown and counted by records older than the claim; left behind, as by an
            # evacuation; of a move on its own host that is over; or on its way.
            left_behind = self._stays_elsewhere(host, consumer, held.confirmed_by or 0)
            return not (
                self.is_shown(host, consumer, held)
                or (claim_facts.stays(held.node) and not self._moves(consumer))
                or (
                    self.is_allocated(host, consumer, held)
                    and (left_behind or self._is_taken_up(host, consumer, held))
                )
            )
        if self._moves_to(host, consumer):
            return True
        if claim_facts.stays(held.node):
            return False  # it was there before the claim, and has not got what it claimed
        # What a server had that moves is its migration's by now; its node counts it still.
        return (
            any(self._stands(key, host) for key in self._keys(consumer))
            and self._shown.counted(host, consumer, held.node) is not shown.Counted.WHOLE
            and not self._is_taken_up(host, consumer, held)
        )

    def _is_taken_up(self, host: str, consumer: str, held: model.HeldClaim) -> bool:
        """Say whether a host's compute service counts a server, though by no later record.

        It saves its node before it builds the server, and never again while nothing
        changes there. A server saved once more meanwhile has the later record for good.
        """
        return (
            self._shown.counted(host, consumer, held.node)
            in (shown.Counted.LIKELY, shown.Counted.WHOLE)
            and self.is_new(host, consumer, held.confirmed_by or 0)
            and any(
                record.state["row"].get("vm_state") not in _NOT_BUILT
                for record in (
                    self._instances.get(key)
                    for key in self._keys(consumer)
                    if self._stands(key, host)
                )
                if record is not None
            )
        )

    def _keys(self, consumer: str) -> Iterator[str]:
        for cell in self._instances.vocabulary("cell").texts():
            yield f"{consumer}@{cell}"

    def _stands(self, key: str, host: str) -> bool:
        place = self._instances.indexed(key, "cell_host")
        return place is not None and place == self._nodes.indexed(host, "cell_host")

    def _stays_elsewhere(self, host: str, consumer: str, since: int) -> bool:
        """Say whether a server is on another host and on its way to none.

        Nova writes the migration before it asks a scheduler where to, and may be shown
        later than what that one wrote: only a row of after that tells that it went, or
        that it failed to come.
        """
        there = [key for key in self._keys(consumer) if key in self._instances]
        return (
            any((self._instances.version_of(key) or 0) > since for key in there)
            and not any(self._stands(key, host) for key in there)
            and not self._moves(consumer)
        )

    def _moves(self, consumer: str) -> bool:
        return bool(self._migrations.lookup("instance", consumer))

    def _moves_to(self, host: str, consumer: str) -> bool:
        place = self._nodes.indexed(host, "host")
        return place is not None and any(
            self._migrations.indexed(key, "destination") == place
            for key in self._migrations.lookup("instance", consumer)
        )

    # -- places in groups -------------------------------------------------------------

    def place_shown_at(self, place: group_model.Place) -> int | None:
        """Return the version of a record that shows a member at a place; None without one.

        On its way there it is not shown yet: while it moves, whoever joins is to know by
        the group's record, conductors among them, which read no migrations.
        """
        consumer, host = place
        name = group_members.place_of(self._snapshot, host)
        if name not in group_members.hosts_of(self._snapshot, consumer):
            return None
        versions = [0]
        for view, keys in (
            (self._instances, self._keys(consumer)),
            (self._migrations, self._migrations.lookup("instance", consumer)),
        ):
            versions += [record.version for record in map(view.get, keys) if record is not None]
        return max(versions)

    def is_place_needed(self, place: group_model.Place, allocations: Allocations) -> bool:
        """Say whether anything but its own record stands behind a member's place."""
        consumer, host = place
        nodes = {host, *group_members.nodes_of(self._snapshot, [host])}
        return any(
            node in allocations or consumer in claims_of(self._snapshot, node) for node in nodes
        )


def allocated_on(snapshot: snapshot_module.Snapshot, host: str) -> Mapping[str, Any]:
    """Return what a host's provider shows by consumer; nothing where there is none."""
    record = snapshot.namespace(namespaces.PROVIDERS.name).get(host)
    return {} if record is None else record.state.get("allocations") or {}


def claims_of(snapshot: snapshot_module.Snapshot, host: str) -> Mapping[str, model.HeldClaim]:
    """Return a host's claims by consumer as a snapshot has them; none where they are unreadable."""
    record = snapshot.namespace(namespaces.CLAIM_RECORDS.name).digest(host)
    if record is None or isinstance(record, errors.InvalidRecord):
        return {}
    claims: Mapping[str, model.HeldClaim] = record.claims
    return claims
