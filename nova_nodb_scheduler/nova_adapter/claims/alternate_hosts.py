# SPDX-License-Identifier: Apache-2.0
"""Whether an alternate still meets its request by the time that a conductor goes on to it.

Alternates are named as a request is decided, by a mirror that may show what others wrote to
Placement late, and used once a build or a move has failed elsewhere. ``PUT /allocations`` judges
capacity alone: an operator's maintenance trait would be passed over. So a conductor asks for the
rest before it claims, for what Nova's own functions make of the request:

    failed elsewhere  ->  GET traits of the node, and its aggregates where some are asked for
        the request is met, or that cannot be told  ->  claim
        it is not  ->  refused like a claim for which there is no room: the next alternate

A server that is kept from a host which would do is worse than a trait that is seen late, so what
cannot be told for certain is let pass:

* Nova's filters add to a request in the scheduler alone. A conductor runs those by which operators
  shut hosts out again, by its own options, and no others. One that fails here is left out, as
  where a conductor of a cell may not read the API's database.
* Nova claims for a build by a request that was made anew, without what an image requires and
  what ports and devices ask for. The one that the build came with is taken instead. Where that
  has not all groups that the alternate was chosen by, as for the further servers of one request,
  aggregates are not isolated: that goes by the traits of all of them.
* A group of the request is judged by the providers that the alternate names for it, together, as
  Placement does; the root by itself, and its aggregates, where the node itself gives anything.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

import attrs
from nova import objects
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.claims import outside_claims
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader

LOG = logging.getLogger(__name__)

#: Nova's filters by which operators shut hosts out. Others ask for what a host can do: a
#: conductor of another release than the schedulers would ask for what no host says yet.
_SHUTTING_OUT = frozenset(
    (
        "compute_status_filter",
        "isolate_aggregates",
        "map_az_to_placement_aggregate",
        "require_tenant_aggregate",
    )
)
#: The one that goes by what all groups of a request require.
_ISOLATING = "isolate_aggregates"

#: One of several traits will do: no supported release of Nova asks so.
_ANY_OF = "in:"


class CheckedAlternates:
    """Has Placement asked before alternates are claimed. Any thread; blocks for Placement.

    :param inner: what claims then; None for Nova's own claim alone
    """

    def __init__(
        self,
        inner: outside_claims.StoppableClaimer | None,
        get: placement_reader.Get = placement_reader.get_from_placement,
    ) -> None:
        self._inner = inner
        self._reader = placement_reader.PlacementReader(get)

    def stop(self) -> None:
        """Release what the inner one holds; idempotent."""
        if self._inner is not None:
            self._inner.stop()

    def claimed(
        self,
        move: outside_claims.OutsideMove,
        allocate: outside_claims.Allocate,
        take_back: Callable[[], None],
    ) -> bool:
        """See :class:`outside_claims.OutsideClaimer`; False, too, where the request is not met."""
        why = self._why_unmet(move)
        if why:
            LOG.info(
                "Server %(server)s cannot go to node %(node)s: %(why)s",
                {"server": move.consumer, "node": move.host, "why": why},
            )
            return False
        if self._inner is None:
            return bool(allocate())
        return self._inner.claimed(move, allocate, take_back)

    def _why_unmet(self, move: outside_claims.OutsideMove) -> str:
        spec = _request_of(move)
        if spec is None:
            return ""
        try:
            return _Look(self._reader, move, _Asked.by(move, spec)).why_unmet()
        except placement_reader.PlacementUnanswered as error:
            why: object = error
        except Exception as error:
            # Whatever is wrong here, a server goes where Nova alone would send it.
            LOG.exception("What an alternate is to meet cannot be told.")
            why = type(error).__name__
        LOG.warning(
            "Whether node %(node)s still meets the request of server %(server)s cannot be told, "
            "Nova's own claim decides: %(why)s",
            {"node": move.host, "server": move.consumer, "why": why},
        )
        return ""


# -- The request -----------------------------------------------------------------


#: The request that the build in this thread came with.
_building = threading.local()
_NO_BUILD: Any = object()


def remembering(build_instances: Callable[..., Any]) -> Callable[..., Any]:
    """Return Nova's method, by which compute nodes have a build go on, with its request at hand."""
    signature = inspect.signature(build_instances)

    @functools.wraps(build_instances)
    def remembered(*args: Any, **kwargs: Any) -> Any:
        before = getattr(_building, "spec", _NO_BUILD)
        _building.spec = signature.bind(*args, **kwargs).arguments.get("request_spec")
        try:
            return build_instances(*args, **kwargs)
        finally:
            _building.spec = before

    return remembered


def _request_of(move: outside_claims.OutsideMove) -> Any:
    """Return the RequestSpec that a host was chosen by; None where nobody has it."""
    building = getattr(_building, "spec", _NO_BUILD)
    if building is _NO_BUILD:
        # Of a server that moves Nova claims with just that; one that is forced has none.
        return move.spec
    if building is None or "instance_uuid" not in building:
        return None
    return building if building.instance_uuid == move.consumer else None


@attrs.frozen
class _Asked:
    """What Nova asks of Placement for a request, but amounts.

    :param groups: by suffix, empty for the group without
    """

    root_required: frozenset[str]
    root_forbidden: frozenset[str]
    groups: dict[str, requests.CandidateQuery]

    @classmethod
    def by(cls, move: outside_claims.OutsideMove, spec: Any) -> _Asked:
        """Have Nova's functions make it; reads Nova's API database where aggregates count."""
        spec = spec.obj_clone()
        # A host by name would be looked up, and says nothing here.
        spec.force_hosts = spec.force_nodes = None
        _filter(move, spec)
        if "requested_destination" in spec and spec.requested_destination is not None:
            spec.requested_destination = objects.Destination(
                aggregates=spec.requested_destination.aggregates,
                forbidden_aggregates=spec.requested_destination.forbidden_aggregates,
            )
        make = functools.partial(
            scheduler_utils.resources_from_request_spec, move.context, spec, None
        )
        wanted = make()
        if wanted.cpu_pinning_requested and not any("PCPU" in of for of in move.amounts.values()):
            # It was offered for Nova's second question, by VCPUs and fewer traits.
            wanted = make(enable_pinning_translate=False)
        return cls(
            frozenset(spec.root_required),
            frozenset(spec.root_forbidden),
            request_conversion.candidate_queries(wanted),
        )


def _filter(move: outside_claims.OutsideMove, spec: Any) -> None:
    """Have Nova's request filters add to a RequestSpec what is asked for besides."""
    known = request_conversion.candidate_queries(
        scheduler_utils.ResourceRequest.from_request_spec(spec.obj_clone())
    )
    is_whole = move.mappings.keys() <= {"", *known}
    for each in request_filter.ALL_REQUEST_FILTERS:
        name = each.__name__
        if name not in _SHUTTING_OUT or (name == _ISOLATING and not is_whole):
            continue
        try:
            each(move.context, spec)
        except Exception as error:
            LOG.warning(
                "An alternate of server %(server)s is judged without %(filter)s: %(error)s",
                {"server": move.consumer, "filter": name, "error": error},
                exc_info=True,
            )


# -- The host --------------------------------------------------------------------


@attrs.define
class _Look:
    """One look at the providers of an alternate. One thread."""

    _reader: placement_reader.PlacementReader
    _move: outside_claims.OutsideMove
    _asked: _Asked
    _read: dict[str, frozenset[str] | None] = attrs.field(init=False, factory=dict)

    def why_unmet(self) -> str:
        """Say why the request is not met any more; empty where nothing tells so.

        :raises PlacementUnanswered: it did not
        """
        root = self._root()
        why = ""
        if root is not None:
            why = self._why_traits([root], self._asked.root_required, self._asked.root_forbidden)
        for suffix, group in self._asked.groups.items():
            givers = list(self._move.mappings.get(suffix, ()))
            if not why and givers:
                why = self._why_traits(givers, group.required_traits, group.forbidden_traits)
            if not why and not suffix and root in givers:
                why = self._why_aggregates(group)
        return why

    def _root(self) -> str | None:
        """Return the root of the host's tree; None where nothing of it is used."""
        host = self._move.host
        if self._move.is_by_node:
            return host
        # A bare metal node gives one class of its own; so does a device.
        is_alone = self._move.amounts.keys() == {host}
        return host if is_alone and host in self._reader.listing(f"uuid={host}").trees else None

    def _why_traits(
        self, providers: list[str], required: frozenset[str], forbidden: frozenset[str]
    ) -> str:
        required = frozenset(name for name in required if not name.startswith(_ANY_OF))
        if not required and not forbidden:
            return ""
        found = [self._traits(provider) for provider in providers]
        traits: set[str] = set()
        for each in found:
            if each is None:
                # It is gone, which the claim is told as well.
                return ""
            traits |= each
        if unwanted := forbidden & traits:
            return f"it has by now what the request forbids: {', '.join(sorted(unwanted))}"
        if missing := required - traits:
            return f"it has no more what the request requires: {', '.join(sorted(missing))}"
        return ""

    def _traits(self, provider: str) -> frozenset[str] | None:
        if provider not in self._read:
            self._read[provider] = self._reader.traits(provider)
        return self._read[provider]

    def _why_aggregates(self, group: requests.CandidateQuery) -> str:
        if not group.member_of and not group.forbidden_aggregates:
            return ""
        aggregates = self._reader.aggregates(self._move.host)
        if aggregates is None or group.admits(aggregates):
            return ""
        return "it is in other aggregates by now than the request asks for"
