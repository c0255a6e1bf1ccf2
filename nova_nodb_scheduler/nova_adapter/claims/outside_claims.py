# SPDX-License-Identifier: Apache-2.0
"""Claims for what Nova allocates outside of select_destinations.

A conductor claims in Placement by itself when a build or a move goes on to an
alternate, and when an evacuation or a live migration is forced to a host. Both of
Nova's functions for that are wrapped here: a claim among the schedulers comes
first, is confirmed after Nova's own, and given back if that failed. Before it is
refused by what the mirror has of the host, or granted because that has nothing of
it, it is read again. A strict server group's members are, too: others were built since
the request was made, of whom the group's record tells no more. Without an answer of
the back end Nova's own goes ahead. What was written is verified either way: a
conductor proves no mirror. A server is forced to a host without a request, by a copy
of its allocation: what it asks for there is made of that.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import attrs
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as claims_model
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.claims import standing_members
from nova_nodb_scheduler.nova_adapter.conversion import numa_pci_claims, request_conversion
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    taking_back as taking_back_module,
)
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    verification,
)
from nova_nodb_scheduler.scheduling.namespaces import claim_facts
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_views, ledger_claimer

LOG = logging.getLogger(__name__)


def request_of_forced_move(context: Any, instance: Any, host: str) -> requests.Request:
    """Return the request that a scheduler would have got; reads Nova's API database.

    Forced: no filter, so no group's policy either, rules the host out. Others
    are to know of the member there all the same.

    :param host: the name of the host that it goes to
    """
    return requests.Request(
        requests.Flavor(
            vcpus=instance.flavor.vcpus,
            memory_mb=instance.flavor.memory_mb,
            root_gb=instance.flavor.root_gb,
            ephemeral_gb=instance.flavor.ephemeral_gb,
        ),
        group=_group_of(context, instance),
        force_hosts=(host,),
        fitted=_fitted_of(instance),
    )


_WITHOUT = "Server %(server)s is claimed for without %(what)s: %(error)s"


def _group_of(context: Any, instance: Any) -> requests.Group | None:
    """Return a server's group; None if it is in none."""
    try:
        group = objects.InstanceGroup.get_by_instance_uuid(context, instance.uuid)
    except nova_exception.InstanceGroupNotFound:
        return None
    except Exception as error:
        # Nova itself does not look for it here.
        about = {"server": instance.uuid, "what": "its server group", "error": error}
        LOG.warning(_WITHOUT, about, exc_info=True)
        return None
    return request_conversion.group(group)


def _fitted_of(instance: Any) -> Mapping[str, Any]:
    """Return the NUMA cells and PCI devices that a server wants."""
    try:
        return numa_pci_claims.of_server(instance)
    except Exception as error:
        # Nova's own claim looks at none of them: nova-compute does, on the host.
        what = "its NUMA cells and PCI devices"
        LOG.warning(
            _WITHOUT, {"server": instance.uuid, "what": what, "error": error}, exc_info=True
        )
        return {}


#: Classes of resources that no provider gives but a node's own.
_NODES_OWN = frozenset(("MEMORY_MB", "PCPU", "VCPU"))

#: Nova's own claim, in Placement: False where it is refused; None without an answer, where
#: it may be allocated all the same, or be allocated yet.
Allocate = Callable[[], bool | None]

#: Looks at a view that is behind: as many as a request in memory makes plans.
_MOST_LOOKS = 10


@attrs.frozen
class OutsideMove:
    """A server that Nova allocates for outside of select_destinations, and where it is to go.

    :param host: uuid of the node
    :param resources: by class, of the node's provider
    :param is_forced: no filter chose the host, and none limits how far its
        NUMA cells are shared
    :param amounts: all of its allocation, by provider
    :param repeats: it may be allocated again after it was taken back
    :param context: Nova's, targeted at the node's cell; None where that is not known
    :param spec: the RequestSpec that Nova claims with; None where it is forced there
    :param mappings: by group of the request, of which providers it is to have that
    """

    consumer: str
    host: str
    resources: Mapping[str, int]
    request: requests.Request
    is_forced: bool = False
    amounts: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    repeats: bool = True
    context: Any = attrs.field(default=None, eq=False, repr=False)
    spec: Any = attrs.field(default=None, eq=False, repr=False)
    mappings: Mapping[str, Collection[str]] = attrs.field(factory=dict)

    @property
    def is_by_node(self) -> bool:
        """Say whether the host's provider gives what none but a node's own does."""
        return not _NODES_OWN.isdisjoint(self.resources)

    @property
    def group_uuid(self) -> str | None:
        """Return the server group that the server is in, if it is in one."""
        group = self.request.group
        return None if group is None else group.uuid


class OutsideClaims:
    """The claims of one conductor; any thread. Blocks for the back end.

    :param synchronizer: open, or opened at the first claim
    :param writer: this process's name in the claims it takes
    :param lease_seconds: how long a claim that is not confirmed stands
    :param deadline_seconds: how long a claim is tried
    :param filters: names of the enabled filters, as far as this process knows them
    :param read_again: asked before a server is refused, and where nothing is known of what
        a node's provider gives, with the node's uuid: True if its provider was not as the
        mirror has it, and is now
    :param unjudged: what allocates where no claim can be judged; None for Nova's
        own claim alone
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        writer: str,
        lease_seconds: float,
        deadline_seconds: float,
        filters: Collection[str] = (),
        read_again: Callable[[str], bool] = lambda node: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        unjudged: Callable[[ledger_claimer.ClaimBatches], UnjudgedClaimer] | None = None,
    ) -> None:
        self._synchronizer = synchronizer
        self._deadline_seconds = deadline_seconds
        self._filters = frozenset(filters)
        self._read_again = read_again
        self._clock = clock
        self._sleep = sleep
        self._batches = ledger_claimer.ClaimBatches(
            synchronizer,
            writer,
            lambda: str(uuid.uuid4()),
            lease_seconds,
            # Looked at with the view, which is read for each claim.
            claimable=lambda host: True,
        )
        self._unjudged = unjudged(self._batches) if unjudged is not None else None

    def stop(self) -> None:
        """Release the connection; idempotent."""
        self._synchronizer.close()

    def claimed(self, move: OutsideMove, allocate: Allocate, take_back: Callable[[], None]) -> bool:
        """Claim, have the resources allocated, confirm; False if they could not be had.

        :param allocate: Nova's own claim, in Placement
        :param take_back: undoes that, on this host only
        """
        filters = frozenset() if move.is_forced else self._filters
        views = claim_views.DirectViews(
            self._synchronizer,
            move.host,
            functools.partial(_make_fitted, filters, move.is_forced),
            _JoinedMembers(move.request, self._clock).of,
        )
        own = ledger_claimer.LedgerClaimer(self._batches, views, clock=self._clock)
        try:
            answer = self._taken(own, views, move)
        except errors.NOT_USABLE as error:
            answer = _unanswered(move, str(error))
        except Exception as error:
            # Whatever is wrong here, a server goes where Nova alone would send it.
            LOG.exception("Server %(server)s cannot be claimed for.", {"server": move.consumer})
            answer = _unanswered(move, type(error).__name__)
        if (broken := _broken_by_nova(answer, move)) is not None:
            answer = broken
        return carried_out(own, answer, move, allocate, take_back, self._unjudged)

    def _taken(
        self,
        own: ledger_claimer.LedgerClaimer,
        views: claim_views.DirectViews,
        move: OutsideMove,
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim:
        self._synchronizer.open()
        place = views.place()
        if place is None:
            return _unanswered(move, "the node is not known in the back end's present epoch")
        if not views.knows_provider():
            # Any claim would be granted there, beside those of others that are not written yet.
            self._read_again(move.host)
        deadline = self._clock() + self._deadline_seconds
        wanted = _wanted(move, place, stays=views.has(move.consumer))
        answer = looked_again(own, move.request, wanted, deadline, self._sleep)
        if _by_what_is_known(answer) and self._read_again(move.host):
            deadline = self._clock() + self._deadline_seconds
            answer = looked_again(own, move.request, wanted, deadline, self._sleep)
        return answer


def _broken_by_nova(
    answer: chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim, move: OutsideMove
) -> chosen_hosts.RefusedClaim | None:
    """Judge a strict group's policy by Nova's databases where the back end tells nothing."""
    if (
        move.context is None
        or not isinstance(answer, chosen_hosts.RefusedClaim)
        or answer.failure is not chosen_hosts.ClaimRefusal.UNAVAILABLE
    ):
        return None
    claim = claims_model.Claim(move.consumer, move.host, move.resources)
    broken = standing_members.why_broken(move.context, move.request, claim)
    if not broken:
        return None
    return chosen_hosts.RefusedClaim(answer.wanted, chosen_hosts.ClaimRefusal.GROUP, broken)


@attrs.define
class _JoinedMembers:
    """Reads who is in the group of one claim's request by now, for its looks. One thread."""

    _request: requests.Request
    _clock: Callable[[], float]
    _read_at: float = attrs.field(init=False, default=float("-inf"))
    _members: frozenset[str] = attrs.field(init=False, default=frozenset())

    def of(self, group: requests.Group) -> Collection[str]:
        """Return members, of a policy that rules hosts out; reads Nova's API database once.

        As nova-compute's own look at the policy does. Without an answer those of the
        request are all that is known, and that look is left.
        """
        judged = ledger_claimer.judged_group(self._request, ledger_claimer.STRICT)
        if judged is None or judged.policy not in ledger_claimer.STRICT:
            return ()
        now = self._clock()
        if now - self._read_at > _MEMBERS_STAY_SECONDS:
            self._members, self._read_at = standing_members.members_of(judged.uuid), now
        return self._members


#: How long members that were read are looked at by: well below the time for which a group's
#: record has a member that is shown already (``SettlementOptions.grace_seconds``).
_MEMBERS_STAY_SECONDS = 15.0


def _by_what_is_known(answer: chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim) -> bool:
    """Say whether a server is refused for what may be otherwise by now."""
    return isinstance(answer, chosen_hosts.RefusedClaim) and answer.failure in (
        chosen_hosts.ClaimRefusal.NEXT_HOST,
        chosen_hosts.ClaimRefusal.BEHIND,
    )


def _make_fitted(
    filters: Collection[str], is_forced: bool, snapshot: snapshot_module.Snapshot
) -> claim_fit.Fitted:
    context = nova_context.get_admin_context()
    # Where no filter chose the host nova-compute alone tells whether it fits there.
    fitting = numa_pci_claims.NumaPciFitting(
        snapshot, filters, context, numa_pci_claims.would_be_taken, leaves_nodes=is_forced
    )
    return fitting.fits


def looked_again(
    own: chosen_hosts.Claimer,
    request: requests.Request,
    wanted: chosen_hosts.WantedClaim,
    deadline: float,
    sleep: Callable[[float], None],
) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim:
    """Claim, and look again while what is known is behind what was settled."""
    for look in range(1, _MOST_LOOKS + 1):
        [answer] = own.take(request, [wanted], deadline)
        if (
            not isinstance(answer, chosen_hosts.RefusedClaim)
            or answer.failure is not chosen_hosts.ClaimRefusal.BEHIND
        ):
            break
        sleep(0.01 * look)
    return answer


def carried_out(
    own: chosen_hosts.Claimer,
    answer: chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim,
    move: OutsideMove,
    allocate: Allocate,
    take_back: Callable[[], None],
    unjudged: UnjudgedClaimer | None,
) -> bool:
    """Allocate under a claim and confirm it; False if the server cannot go there.

    Without an answer of the back end it is allocated all the same.

    :param unjudged: what does that then, and looks after what is written under a claim
    """
    if isinstance(answer, chosen_hosts.RefusedClaim):
        return _without(answer, move, allocate, take_back, unjudged)
    if unjudged is not None:
        allocate = unjudged.verified(move, allocate)
    try:
        allocated = allocate()
    except nova_exception.NovaException as error:
        if verification.may_be_left(error):
            own.release_places([answer])
        else:
            own.release([answer])
        raise
    # Of any other error nobody knows what was written, or is written yet: the
    # claim stands until its lease ends, and tells whose allocation that is.
    if allocated is None:
        # It may come yet, and takes room then, though the server goes elsewhere.
        own.release_places([answer])
        return False
    if not allocated:
        own.release([answer])
        return False
    try:
        if own.confirm([answer])[0]:
            return True
    except BaseException:
        # Nobody answers with it, so it is to be nobody's.
        if unjudged is not None:
            unjudged.may_be_left(move)
        take_back()
        own.release([answer])
        raise
    LOG.warning(
        "The claim of server %(server)s on node %(node)s ended before it was confirmed; "
        "its allocation there is taken back.",
        {"server": move.consumer, "node": move.host},
    )
    if unjudged is not None:
        # Nobody hears whether that is done, and the claim tells nothing any more.
        unjudged.may_be_left(move)
    take_back()
    return False


def _without(
    answer: chosen_hosts.RefusedClaim,
    move: OutsideMove,
    allocate: Allocate,
    take_back: Callable[[], None],
    unjudged: UnjudgedClaimer | None,
) -> bool:
    about = {"server": move.consumer, "node": move.host, "why": answer.detail}
    if answer.failure is chosen_hosts.ClaimRefusal.UNAVAILABLE:
        LOG.warning(
            "No claim for server %(server)s on node %(node)s can be judged, Nova's own goes "
            "ahead: %(why)s",
            about,
        )
        if unjudged is None:
            return bool(allocate())
        return unjudged.claimed(move, allocate, take_back)
    LOG.info("Server %(server)s cannot go to node %(node)s: %(why)s", about)
    return False


def _unanswered(move: OutsideMove, why: str) -> chosen_hosts.RefusedClaim:
    return chosen_hosts.RefusedClaim(_wanted(move), chosen_hosts.ClaimRefusal.UNAVAILABLE, why)


def _wanted(
    move: OutsideMove, host_name: str = "", *, stays: bool = False
) -> chosen_hosts.WantedClaim:
    # What a plan would know of the host beside its name; deciding is over.
    chosen = chosen_hosts.Choice(-1, move.host, "", host_name, "", 0.0, ())
    share = claim_facts.share_of(move.request, stays=stays)
    return chosen_hosts.WantedClaim(move.consumer, chosen, move.resources, share, moves=True)


# -- Nova's functions ------------------------------------------------------------


class OutsideClaimer(Protocol):
    """Who claims for Nova's own calls."""

    def claimed(self, move: OutsideMove, allocate: Allocate, take_back: Callable[[], None]) -> bool:
        """See :meth:`OutsideClaims.claimed`."""


class StoppableClaimer(OutsideClaimer, Protocol):
    """Claims that hold a connection."""

    def stop(self) -> None:
        """Release it; idempotent."""


class UnjudgedClaimer(OutsideClaimer, Protocol):
    """What allocates where no claim can be judged, see :mod:`.unjudged_claims`."""

    def verified(self, move: OutsideMove, allocate: Allocate) -> Allocate:
        """Return what allocates under a claim on the node, and verifies it."""

    def may_be_left(self, move: OutsideMove) -> None:
        """Remember that a server's allocation may be left, or come yet; no I/O."""


_claims: OutsideClaimer | None = None

#: What a thread claims by instead, see :func:`using`.
_of_thread = threading.local()


def install(outside: OutsideClaimer) -> None:
    """Claim in this process from now on; a second call replaces the first."""
    global _claims
    _claims = outside
    _wrap()


@contextlib.contextmanager
def using(claims_here: OutsideClaimer | None) -> Iterator[None]:
    """Claim by something else in this thread for a while; by nothing for None."""
    _wrap()
    before = getattr(_of_thread, "claims", _UNSET)
    _of_thread.claims = claims_here
    try:
        yield
    finally:
        _of_thread.claims = before


_UNSET: Any = object()


@contextlib.contextmanager
def answered_together(
    claims_here: OutsideClaimer | None,
    unjudged: UnjudgedClaimer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Claim by something else in this thread, for servers that are answered with all or not.

    What stands goes again where an error leaves nobody to answer with it: Nova's own code
    takes back what the other servers of a request had only where it finds no host for one.
    Where that comes late it is only remembered, and judged by the rules for orphans.

    :param unjudged: remembers what Placement may not have taken back by then
    :param clock: monotonic seconds
    """
    if claims_here is None:
        with using(None):
            yield
        return
    together = _AnsweredTogether(claims_here)
    window = taking_back_module.TakeBackWindow.since_now(clock)
    with using(together):
        try:
            yield
        except BaseException as error:
            if unjudged is not None:
                together.remember(unjudged)
            # Without a host Nova's own code has deleted it, and did not hear whether Placement
            # was there.
            is_deleted = isinstance(error, nova_exception.NoValidHost)
            if not is_deleted and window.is_open():
                together.take_back()
            raise


class _AnsweredTogether:
    """The claims of one request, in its thread."""

    def __init__(self, inner: OutsideClaimer) -> None:
        self._inner = inner
        self._standing: list[tuple[OutsideMove, Callable[[], None]]] = []

    def claimed(self, move: OutsideMove, allocate: Allocate, take_back: Callable[[], None]) -> bool:
        """See :class:`OutsideClaimer`."""
        stands = self._inner.claimed(move, allocate, take_back)
        if stands:
            self._standing.append((move, take_back))
        return stands

    def remember(self, unjudged: UnjudgedClaimer) -> None:
        """Have all remembered that stands; no I/O."""
        for move, _take_back in self._standing:
            unjudged.may_be_left(move)

    def take_back(self) -> None:
        """Have all go that stands. Their claims end as those of servers that never stand."""
        for move, take_back in self._standing:
            try:
                take_back()
            except Exception:
                LOG.exception(
                    "The allocation of server %(server)s was not taken back.",
                    {"server": move.consumer},
                )


def _in_use() -> OutsideClaimer | None:
    own: OutsideClaimer | None = getattr(_of_thread, "claims", _UNSET)
    return _claims if own is _UNSET else own


def _wrap() -> None:
    for name, wrap in (
        ("claim_resources", _claiming),
        ("claim_resources_on_destination", _claiming_on_destination),
    ):
        function = getattr(scheduler_utils, name)
        if not hasattr(function, "_nodb"):
            setattr(scheduler_utils, name, wrap(function))


def uninstall(outside: OutsideClaimer) -> None:
    """Leave it to Nova again; no-op if another was installed since."""
    global _claims
    if _claims is outside:
        _claims = None


def stock_claim_resources(*args: Any, **kwargs: Any) -> bool | None:
    """Call Nova's own function: for a scheduler, which has claimed already.

    :return: None where Placement did not answer: what was asked for may be allocated
        all the same, or be allocated yet
    """
    function = scheduler_utils.claim_resources
    # Nova takes what its client returns then for a refusal.
    claimed: bool | None = getattr(function, "__wrapped__", function)(*args, **kwargs)
    return claimed


def _claiming(function: Any) -> Any:
    @functools.wraps(function)
    def claim_resources(
        context: Any, client: Any, spec: Any, consumer: str, request: Any, *args: Any, **kwargs: Any
    ) -> bool:
        def allocate() -> bool | None:
            claimed: bool | None = function(
                context, client, spec, consumer, request, *args, **kwargs
            )
            return claimed

        outside = _in_use()
        if outside is None or scheduler_utils.request_is_rebuild(spec):
            return bool(allocate())
        host, resources = _of_node(request["allocations"])
        asked = _fitted_by(request_conversion.request(spec, (), ()), request)
        amounts = {name: dict(part["resources"]) for name, part in request["allocations"].items()}
        move = OutsideMove(
            consumer,
            host,
            resources,
            asked,
            amounts=amounts,
            context=context,
            spec=spec,
            mappings=dict(request.get("mappings") or {}),
        )
        back = taking_back(context, client, consumer, host, amounts)
        return outside.claimed(move, allocate, back)

    claim_resources._nodb = True  # type: ignore[attr-defined]
    return claim_resources


def _claiming_on_destination(function: Any) -> Any:
    @functools.wraps(function)
    def claim_resources_on_destination(
        context: Any, client: Any, instance: Any, source: Any, destination: Any, **kwargs: Any
    ) -> None:
        outside = _in_use()
        if outside is None:
            function(context, client, instance, source, destination, **kwargs)
            return
        shown = kwargs.get("source_allocations")
        if shown is None:
            shown = client.get_allocs_for_consumer(context, instance.uuid)["allocations"]
        move = OutsideMove(
            instance.uuid,
            destination.uuid,
            dict(shown.get(source.uuid, {}).get("resources", {})),
            request_of_forced_move(context, instance, destination.host),
            is_forced=True,
            # Nova's caller has read the generation that the first write is for.
            repeats=kwargs.get("consumer_generation") is None,
        )

        def allocate() -> bool | None:
            heard = _HeardClient(client)
            try:
                function(context, heard, instance, source, destination, **kwargs)
            except nova_exception.NoValidHost:
                if heard.is_unanswered:
                    return None
                raise
            return True

        back = taking_back(context, client, instance.uuid, destination.uuid)
        if not outside.claimed(move, allocate, back):
            raise nova_exception.NoValidHost(
                reason=f"Unable to move instance {instance.uuid} to host {destination.host}. "
                "There is not enough capacity on the host for the instance."
            )

    claim_resources_on_destination._nodb = True  # type: ignore[attr-defined]
    return claim_resources_on_destination


class _HeardClient:
    """Nova's client for one claim, which Nova's own function takes for refused without an answer.

    :ivar is_unanswered: whether the claim may be allocated all the same, or be allocated yet
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_unanswered = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def claim_resources(self, *args: Any, **kwargs: Any) -> bool | None:
        """Claim as the client does; None where Placement did not answer."""
        claimed: bool | None = self._client.claim_resources(*args, **kwargs)
        self.is_unanswered = claimed is None
        return claimed


def _fitted_by(asked: requests.Request, allocation: Mapping[str, Any]) -> requests.Request:
    """Return a request that names the providers of the allocation it is to have.

    Nova itself fills them in only after its claim.
    """
    if not asked.fitted:
        return asked
    return attrs.evolve(
        asked,
        fitted={**asked.fitted, numa_pci_claims.MAPPING: dict(allocation.get("mappings") or {})},
    )


def _of_node(allocations: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    """Return the node's provider, and what it gives.

    What is a node's alone tells it; else that it gives most classes, as a bare
    metal node gives one.
    """

    def of_node(provider: str) -> tuple[int, int]:
        classes = allocations[provider]["resources"].keys()
        return len(classes & _NODES_OWN), len(classes)

    host = max(allocations, key=of_node)
    return host, dict(allocations[host]["resources"])


def taking_back(
    context: Any,
    client: Any,
    consumer: str,
    host: str,
    amounts: Mapping[str, Mapping[str, int]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Return what undoes an allocation that is about to be written, see :mod:`.taking_back`.

    Of a server that has anything beside it only what is on the host: shared storage may have
    been its own before.

    :param amounts: all of the allocation, by provider; where the server has just that, it goes
        as a whole. Nova's own function leaves what providers give that are not of the host
    :param clock: monotonic seconds
    """
    window = taking_back_module.TakeBackWindow.since_now(clock)

    def kept(held: taking_back_module.Held) -> taking_back_module.Held | None:
        shown = {name: dict(part["resources"]) for name, part in held.items()}
        if amounts and shown == amounts:
            return {}
        return taking_back_module.without_tree(context, client, held, host)

    def take_back() -> None:
        try:
            taken = taking_back_module.reduce(context, client, consumer, kept, window)
        except (nova_exception.NovaException, keystone.ClientException) as error:
            LOG.warning("Placement did not take an allocation back: %(error)s", {"error": error})
            taken = False
        if not taken:
            LOG.error(
                "The allocation of server %(server)s could not be removed; "
                "'nova-manage placement audit' finds it.",
                {"server": consumer},
            )

    return take_back
