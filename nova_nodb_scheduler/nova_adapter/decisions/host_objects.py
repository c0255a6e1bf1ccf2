# SPDX-License-Identifier: Apache-2.0
"""Nova's own filters and weighers on Nova's host states, for the hosts that need them.

NUMA fit and PCI devices are Nova's code, and an operator's own filters expect
Nova's HostState: both run here, on the hosts that the masks left, unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from nova import filters as nova_filters
from nova.scheduler import manager as nova_manager
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter

from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

LOG = logging.getLogger(__name__)

#: Filters of Nova's that look at each host by itself, and raise at none. Its others
#: are asked for the very requests at which they may raise for some host.
_NEVER_RAISE = (
    numa_topology_filter.NUMATopologyFilter,
    pci_passthrough_filter.PciPassthroughFilter,
)


class NovaHostObjects:
    """Host states of one request, made when they are first asked for.

    One thread. Implements :class:`plugin_contract.HostObjects`.

    :param host_manager: Nova's, with the enabled filters and the weighers
    :param make_states: uuids of compute nodes -> their HostStates
    :param candidates: uuid -> the allocation requests of that host
    """

    def __init__(
        self,
        host_manager: Any,
        spec: Any,
        make_states: Callable[[Collection[str]], dict[str, Any]],
        candidates: Callable[[str], Sequence[plugin_contract.AllocationRequest]],
    ) -> None:
        self._filters = {type(each).__name__: each for each in host_manager.enabled_filters}
        self._weighers = {type(each).__name__: each for each in host_manager.weighers}
        self._spec = spec
        self._make_states = make_states
        self._candidates = candidates
        self._states: dict[str, Any] = {}
        #: Servers that took their share of a host before it had a host state.
        self._consumed: dict[str, list[str | None]] = {}
        #: What a filter or weigher of Nova's, or the operator's, raised.
        self.raised: Exception | None = None

    def _known(self, uuids: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the host states of those compute nodes that are still there."""
        missing = [uuid for uuid in uuids if uuid not in self._states]
        if missing:
            for uuid, state in self._make_states(missing).items():
                state.allocation_candidates = list(self._candidates(uuid))
                self._states[uuid] = state
                for instance_uuid in self._consumed.pop(uuid, ()):
                    self._consume(state, instance_uuid)
        return [(uuid, self._states[uuid]) for uuid in uuids if uuid in self._states]

    def filter(self, name: str, uuids: Sequence[str], index: int) -> Collection[str]:
        """Return the hosts that one of the enabled filters passes."""
        own = self._filters[name]
        if not own.run_filter_for_index(index):
            return uuids
        known = self._known(uuids)
        uuid_of = {id(state): uuid for uuid, state in known}
        asked = _Asked([state for _, state in known])
        try:
            # None is Nova's word for "stop filtering": nothing is left.
            return [uuid_of[id(state)] for state in own.filter_all(asked, self._spec) or ()]
        except Exception as error:
            self._tell_of("Filter", name, asked.last, error)
            raise

    def _tell_of(self, what: str, name: str, host: Any, error: Exception) -> None:
        self.raised = error
        LOG.error(
            "%(what)s %(name)s failed at host %(host)s; the request fails as it would with "
            "Nova's own scheduler.",
            {"what": what, "name": name, "host": host},
        )

    def is_apart(self, name: str, *, is_chosen: bool) -> bool:
        """Tell whether a filter looks at each host by itself, as far as is known.

        Whoever raises at a host fails the request, and may be asked about fewer
        only if the operator chose so; an operator's filter may also count its
        calls, or remember the last host.
        """
        kind = type(self._filters[name])
        if kind.filter_all is not nova_filters.BaseFilter.filter_all:
            return False
        return is_chosen or kind in _NEVER_RAISE

    def weigh(self, name: str, uuids: Sequence[str]) -> plugin_contract.WeighedOnObjects:
        """Return what one of the weighers says of some hosts."""
        own = self._weighers[name]
        known = dict(self._known(uuids))
        asked = _Asked([_Weighed(state) for state in known.values()])
        try:
            weighed = own.weigh_objects(asked, self._spec)
            raw = dict(zip(known, weighed, strict=True))
            multiplied = {
                uuid: own.weight_multiplier(each.obj)
                for uuid, each in zip(known, asked, strict=True)
            }
        except Exception as error:
            self._tell_of("Weigher", name, asked.last, error)
            raise
        # A host that went meanwhile moves no extreme, and its claim will fail.
        least = min(raw.values(), default=0.0)
        return plugin_contract.WeighedOnObjects(
            raw=np.array([raw.get(uuid, least) for uuid in uuids], np.float64),
            multipliers=np.array([multiplied.get(uuid, 0.0) for uuid in uuids], np.float64),
            minval=own.minval,
            maxval=own.maxval,
        )

    def allocation_requests(self, uuid: str) -> Sequence[plugin_contract.AllocationRequest]:
        """Return what the filters left of a host's allocation requests."""
        state = self._states.get(uuid)
        found = self._candidates(uuid) if state is None else state.allocation_candidates
        return list(found)

    def consume(self, uuid: str, instance_uuid: str | None) -> None:
        """Take the request's share of a host's NUMA cells and PCI devices.

        Of a host that nobody has looked at it is taken once somebody does:
        making a host state costs more than all else that a server costs.
        """
        if uuid not in self._states and not self._changes_request():
            self._consumed.setdefault(uuid, []).append(instance_uuid)
            return
        for _, state in self._known([uuid]):
            self._consume(state, instance_uuid)

    def _consume(self, state: Any, instance_uuid: str | None) -> None:
        nova_manager.SchedulerManager._consume_selected_host(
            state, self._spec, instance_uuid=instance_uuid
        )

    def _changes_request(self) -> bool:
        """Tell whether Nova changes the request as it takes its share: the next server sees it.

        The fitted NUMA cells, the devices, the group's hosts.
        """
        spec = self._spec
        devices = spec.pci_requests if "pci_requests" in spec else None
        return bool(
            ("numa_topology" in spec and spec.numa_topology)
            or (devices and devices.requests)
            or ("instance_group" in spec and spec.instance_group)
        )

    def limits(self, uuid: str) -> dict[str, Any]:
        """Return the limits that filters set on a host."""
        state = self._states.get(uuid)
        return dict(state.limits) if state is not None else {}


class _Weighed:
    """What Nova's weighers expect around a host state."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj
        self.weight = 0.0

    def __repr__(self) -> str:
        return repr(self.obj)


class _Asked(list[Any]):
    """Host states, or what is around them, remembering the last one that was taken."""

    last: Any = None

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.last = each
            yield each
