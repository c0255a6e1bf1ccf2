# SPDX-License-Identifier: Apache-2.0
"""The nova-compute services of hosts and their heartbeats, from one snapshot of the store."""

from __future__ import annotations

from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import namespaces, service_facts
from nova_nodb_scheduler.store import snapshot as snapshot_module

#: Of all services that may run on a host, the one a compute node belongs to.
COMPUTE_BINARY = "nova-compute"


class ServiceSource:
    """Services as one snapshot has them. Cheap to make; used by one thread."""

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._view = snapshot.namespace(namespaces.SERVICES.name)
        self._liveness = snapshot.namespace(namespaces.SERVICE_LIVENESS.name)

    def of_host(self, cell: str, host: str) -> service_facts.ServiceFacts:
        """Return a host's nova-compute service.

        :raises InvalidRecord: its record is not as Nova writes it
        """
        for key in reversed(self._view.lookup("cell_host", cell, host) if host else ()):
            if self._is_compute(key):
                return self._service(key)
        return service_facts.ServiceFacts()

    def of_all(self) -> dict[tuple[str, str], service_facts.ServiceFacts | errors.InvalidRecord]:
        """Return what :meth:`of_host` says, or raises, of each host that has one."""
        view = self._view
        columns = (
            map(view.vocabulary(name).texts().__getitem__, view.column(name).tolist())
            for name in ("cell", "host", "binary")
        )
        latest: dict[tuple[str, str], tuple[str, Any]] = {}
        for key, facts, cell, host, binary in zip(
            view.row_keys(), view.kept_digests(), *columns, strict=True
        ):
            known = latest.get((cell, host))
            if binary == COMPUTE_BINARY and host and (known is None or known[0] < key):
                latest[cell, host] = (key, facts)
        heard = dict(zip(self._liveness.row_keys(), self._liveness.kept_digests(), strict=True))
        return {place: _seen(facts, heard.get(key)) for place, (key, facts) in latest.items()}

    def host_of_service(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) of a nova-compute service; None for any other."""
        if not self._is_compute(key):
            return None
        found = self._view.indexed(key, "cell_host")
        return None if found is None else (found[0], found[1])

    def is_only_service(self, key: str, cell: str, host: str) -> bool:
        """Return whether no other service runs on a service's host."""
        return self._view.lookup("cell_host", cell, host) == (key,)

    def last_seen_seconds(self, key: str) -> float | None:
        """Return when a service said last that it lives; None if it never did.

        :raises InvalidRecord: the record is not as the reporters write it
        """
        seen: float | errors.InvalidRecord | None = self._liveness.digest(key)
        if isinstance(seen, errors.InvalidRecord):
            raise seen
        return seen

    def _is_compute(self, key: str) -> bool:
        found = self._view.indexed(key, "binary")
        return found is not None and found[0] == COMPUTE_BINARY

    def _service(self, key: str) -> service_facts.ServiceFacts:
        facts: service_facts.ServiceFacts | errors.InvalidRecord = self._view.digest(key)
        if isinstance(facts, errors.InvalidRecord):
            raise facts
        seen = self.last_seen_seconds(key)
        return facts if seen is None else attrs.evolve(facts, last_seen_seconds=seen)


def _seen(
    facts: service_facts.ServiceFacts | errors.InvalidRecord,
    seen: float | errors.InvalidRecord | None,
) -> service_facts.ServiceFacts | errors.InvalidRecord:
    """Return a service's facts with its last heartbeat, or what is wrong with its records."""
    if isinstance(facts, errors.InvalidRecord) or seen is None:
        return facts
    if isinstance(seen, errors.InvalidRecord):
        return seen
    return service_facts.ServiceFacts(facts.has_service, facts.disabled, facts.forced_down, seen)
