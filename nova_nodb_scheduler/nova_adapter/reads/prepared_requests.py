# SPDX-License-Identifier: Apache-2.0
"""Remembers what Nova's preparation made of a request, for the next ones like it.

Before it asks for candidates Nova runs its request filters, which add to the RequestSpec
what Placement is to be asked besides, and makes a ResourceRequest of it. Servers are
booted from a few flavors and images: that is the same result again and again, for a
quarter of all calls that a decision in memory took.

So Nova's own functions make it once, and what they made is taken for a request that is
equal in all that they read: the fields of the RequestSpec but those that none of them
reads, their options, and the records that stand for Nova's tables. What cannot be told
by that goes Nova's way each time: a field of another form, a port, a forced host, a
request filter that is not known here. So does what Nova logs anything about, for it says
that of each request. So does everything where Nova's code is not that of a release.

Both functions are replaced as those of :mod:`.database_reads` are, and act only within a
request that is decided from memory. What is remembered is never what a request is given:
each gets a copy of what may be changed.
"""

from __future__ import annotations

import copy
import datetime
import functools
import logging
import threading
from collections.abc import Mapping
from typing import Any

import attrs
import nova.conf
from nova.objects import base
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from oslo_versionedobjects import fields

from nova_nodb_scheduler import code_fingerprints
from nova_nodb_scheduler.nova_adapter.reads import database_reads, request_views

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_process = request_filter.process_reqspec
_resources = scheduler_utils.resources_from_request_spec

_FILTERS = list(request_filter.ALL_REQUEST_FILTERS)

#: By name: the fingerprints of Nova 31 to 34, by ``tools/code_fingerprints.py``, which read
#: nothing but what :func:`_key_of` returns.
KNOWN: Mapping[str, frozenset[str]] = {
    "nova.scheduler.request_filter": frozenset(
        ["202e4066608149a7", "5b7e78e2b8fac023", "6a244311b2bbb508", "86a327a5f6e45175"]
    ),
    "nova.scheduler.utils.ResourceRequest": frozenset(
        ["4189c835eda9bf32", "681aa4700e625eee", "b478129ae3c839e5", "ddf955dbd3af65ef"]
    ),
    "nova.scheduler.utils.request_is_rebuild": frozenset(["efc1dc96bd9d06c6"]),
    "nova.scheduler.utils.resources_from_request_spec": frozenset(["58d4d2b668be5f0a"]),
}

#: Options of [scheduler] that Nova's functions read, of those that this release has.
_OPTIONS = tuple(
    name
    for name in (
        "enable_isolated_aggregate_filtering",
        "image_metadata_prefilter",
        "limit_tenants_to_placement_aggregate",
        "max_placement_results",
        "placement_aggregate_required_for_tenants",
        "query_placement_for_image_type_support",
        "query_placement_for_routed_network_aggregates",
    )
    if name in CONF.scheduler
)


def _attributes(*names: str) -> frozenset[str]:
    """Return where a versioned object keeps fields."""
    return frozenset(map(base.get_attrname, names))


_PREFIX = base.get_attrname("")
_PREFIX_LENGTH = len(_PREFIX)
#: Fields of a RequestSpec that Nova's functions do not read, or that are looked at apart.
_UNREAD = _attributes(
    "id",
    "ignore_hosts",
    "instance_group",
    "instance_uuid",
    "limits",
    "network_metadata",
    "num_instances",
    "project_id",
    "retry",
    "security_groups",
    "user_id",
)
#: Those that they read, and that requests are told apart by.
_READ = _attributes("availability_zone", "flavor", "image", "is_bfv")
#: Read where tenants are limited to aggregates; a cloud has many projects.
_PROJECT = base.get_attrname("project_id")
#: Those that they set: the second, and the third, only where it was not there before.
_SET = _attributes("request_level_params", "requested_destination", "requested_networks")
_PARAMETERS = base.get_attrname("request_level_params")
_DESTINATION = base.get_attrname("requested_destination")
#: The same, where a RequestSpec says which were changed.
_SET_NAMES = frozenset(("request_level_params", "requested_destination", "requested_networks"))
_NETWORKS = base.get_attrname("requested_networks")
_PASSED_OVER = _UNREAD | _SET
_LISTS = _attributes("force_hosts", "force_nodes", "requested_resources")
_HINTS = base.get_attrname("scheduler_hints")
_PCI_REQUESTS = base.get_attrname("pci_requests")
_REQUESTS = base.get_attrname("requests")
_OBJECTS = base.get_attrname("objects")
_PORT = base.get_attrname("port_id")

_PLAIN = frozenset((bool, datetime.datetime, float, int, str, type(None)))

#: Of what runs while a request is prepared. The first stands for all where they are asked
#: whether they debug.
_LOGGERS = tuple(
    map(
        logging.getLogger,
        (
            "nova.scheduler.request_filter",
            "nova.scheduler.utils",
            "nova.compute.utils",
            "nova.objects.aggregate",
            "nova.objects.request_spec",
            "nova.objects.service",
            "nova.virt.hardware",
            database_reads.__name__,
        ),
    )
)


@functools.cache
def _unknown() -> tuple[str, ...]:
    """Return what of Nova's is not as it was released, so that nothing can be remembered of it."""
    looked_at = {
        "nova.scheduler.request_filter": request_filter,
        "nova.scheduler.utils.ResourceRequest": scheduler_utils.ResourceRequest,
        "nova.scheduler.utils.request_is_rebuild": scheduler_utils.request_is_rebuild,
        "nova.scheduler.utils.resources_from_request_spec": _resources,
    }
    names = [
        name
        for name, code in looked_at.items()
        if code_fingerprints.of_code(code) not in KNOWN[name]
    ]
    own = request_filter.__file__
    # Somebody else's has another file, and so has what he wraps one of Nova's with.
    names += [each.__name__ for each in _FILTERS if _file_of(each) != own]
    if names:
        LOG.info(
            "Nova prepares each request anew, for this is not as it was released: %(names)s",
            {"names": ", ".join(names)},
        )
    return tuple(names)


def _file_of(function: Any) -> str | None:
    code = getattr(function, "__code__", None)
    return None if code is None else str(code.co_filename)


class _Unlike(Exception):
    """A request that no other is like, for all that can be told."""


class _Counter(logging.Filter):
    """Counts what each thread logs; lets everything pass."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        self._of_thread.logged = self.logged + 1
        return True

    @property
    def logged(self) -> int:
        """How much this thread has logged so far."""
        return int(getattr(self._of_thread, "logged", 0))


_counter = _Counter()


@attrs.define(eq=False)
class _Prepared:
    """What Nova's functions made of a request, and would make of all those like it.

    :param fields: that were set in the RequestSpec, by attribute; each gets a copy
    :param changes: names that joined its changed fields
    :param served: scopes that were answered from memory
    :ivar made: the ResourceRequests by whether pinning was translated; nobody changes one
    """

    fields: dict[str, Any]
    changes: frozenset[str]
    served: frozenset[str]
    made: dict[bool, Any] = attrs.field(init=False, factory=dict)

    def give(self, spec: Any, view: request_views.RequestView) -> None:
        """Set in a RequestSpec what Nova's functions would have set."""
        held = vars(spec)
        for name, value in self.fields.items():
            held[name] = _copied(value)
        spec._changed_fields |= self.changes
        view.served |= self.served


@attrs.define(eq=False)
class RequestPreparation:
    """One request's way through both functions. One thread.

    :param key: see :func:`_key_of`
    :param before: the RequestSpec's attributes, its changed fields, and how much the thread
        had logged
    :param served: the scopes that were answered from memory on the way
    :param prepared: None until something is remembered
    """

    spec: Any
    key: _Key
    before: tuple[dict[str, Any], frozenset[str], int]
    served: frozenset[str]
    prepared: _Prepared | None


@functools.wraps(_process)
def process_reqspec(ctxt: Any, request_spec: Any) -> None:
    """Have Nova's filters process a RequestSpec, or do what they did with one like it."""
    view = request_views.current()
    key = None
    if view is not None and view.decides:
        view.preparation = None
        key = _key_of(view, request_spec)
    if view is None or key is None:
        _process(ctxt, request_spec)
        return
    prepared: _Prepared | None = view.reads.prepared(key)
    held, changes = vars(request_spec), frozenset(request_spec._changed_fields)
    before = dict(held), changes, _counter.logged
    if prepared is None:
        served = _processed(view, ctxt, request_spec)
    else:
        served = prepared.served
        prepared.give(request_spec, view)
    view.preparation = RequestPreparation(request_spec, key, before, served, prepared)


def _processed(view: request_views.RequestView, ctxt: Any, request_spec: Any) -> frozenset[str]:
    """Have Nova's filters process a RequestSpec; return the scopes that they were answered of.

    Of those, another request's view need not have served any before, as this one's may have.
    """
    before, view.served = view.served, set()
    try:
        _process(ctxt, request_spec)
        return frozenset(view.served)
    finally:
        view.served |= before - view.missed.keys()


@functools.wraps(_resources)
def resources_from_request_spec(
    ctxt: Any, spec_obj: Any, host_manager: Any, enable_pinning_translate: bool = True
) -> Any:
    """Return Nova's ResourceRequest, or the one that it made for a RequestSpec like this."""
    view = request_views.current()
    preparation: RequestPreparation | None = view.preparation if view is not None else None
    if view is None or preparation is None or preparation.spec is not spec_obj:
        return _resources(ctxt, spec_obj, host_manager, enable_pinning_translate)
    prepared = preparation.prepared
    made = None if prepared is None else prepared.made.get(enable_pinning_translate)
    if made is None:
        made = _resources(ctxt, spec_obj, host_manager, enable_pinning_translate)
        _remember(view, preparation, enable_pinning_translate, made)
    return made


def _remember(
    view: request_views.RequestView, preparation: RequestPreparation, is_translated: bool, made: Any
) -> None:
    """Keep what was made for the next requests, where it would be made the same for them."""
    former, changes, logged = preparation.before
    if _counter.logged != logged or view.missed:
        return
    prepared, spec = preparation.prepared, preparation.spec
    held = vars(spec)
    if prepared is None:
        try:
            # What else was changed would have to be changed in the others, too.
            came = {name for name in held.keys() - former.keys() if name.startswith(_PREFIX)}
            if not came <= _SET or _fields(held) != preparation.key[-1]:
                return
            names = [name for name in _SET if held.get(name) is not former.get(name)]
            copies = {name: _copied(held[name]) for name in {_PARAMETERS, *names}}
        except _Unlike:
            return
        prepared = _Prepared(
            {name: held[name] for name in copies},
            frozenset(spec._changed_fields) - changes,
            preparation.served,
        )
        for part in prepared.fields.values():
            # It names who asked.
            part._context = None
        preparation.prepared = prepared
        view.reads.keep_prepared(preparation.key, prepared)
    else:
        copies = {name: _copied(held[name]) for name in prepared.fields}
    prepared.made[is_translated] = made
    # Sets of what was made are those of the RequestSpec, which goes on being changed.
    held.update(copies)


#: Options, what is asked for beside the groups, and the other fields.
_Key = tuple[Any, ...]


def _key_of(view: request_views.RequestView, spec: Any) -> _Key | None:
    """Return what Nova's functions read, beside the records; None where that is not known."""
    if (
        _unknown()
        or request_filter.ALL_REQUEST_FILTERS != _FILTERS
        or view.missed
        or view.proof.missing
        or _LOGGERS[0].isEnabledFor(logging.DEBUG)
    ):
        return None
    held, options = vars(spec), CONF.scheduler
    parameters, networks = held.get(_PARAMETERS), held.get(_NETWORKS)
    if held.get(_DESTINATION) is not None or not (networks is None or _lack_ports(networks)):
        return None
    try:
        key = (
            *[getattr(options, name) for name in _OPTIONS],
            held.get(_PROJECT) if options.limit_tenants_to_placement_aggregate else None,
            None if parameters is None else _content(parameters),
            networks is None,
            _DESTINATION in held,
            _SET_NAMES & spec._changed_fields,
            # Of all of them the least version of a service is asked for.
            view.cells,
            _fields(held),
        )
        hash(key)
    except (_Unlike, TypeError):
        return None
    return key


def _fields(held: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields of a RequestSpec that tell it apart, but those that Nova sets.

    :raises _Unlike: what one holds is in no key
    """
    found: list[Any] = []
    for name, value in held.items():
        if name[:_PREFIX_LENGTH] != _PREFIX or name in _PASSED_OVER:
            continue
        if name in _READ:
            found += (name, value if value.__class__ in _PLAIN else _content(value))
        elif name == _HINTS:
            # What they are called is their user's choice: in one piece. None is an error.
            found += (name, value if value is None else tuple(value))
        elif value is None:
            continue
        elif not (
            (name in _LISTS and value == [])
            or (name == _PCI_REQUESTS and vars(value).get(_REQUESTS) == [])
        ):
            raise _Unlike(name)
    return tuple(found)


def _lack_ports(networks: Any) -> bool:
    """Say whether no filter would ask Neutron about what was requested."""
    wanted = vars(networks).get(_OBJECTS)
    return wanted == [] or (
        wanted is not None
        and not CONF.scheduler.query_placement_for_routed_network_aggregates
        and all(vars(each).get(_PORT, wanted) is None for each in wanted)
    )


def _content(value: Any) -> tuple[Any, ...]:
    """Return what a field holds, in a form that compares and hashes; and what is in it.

    :raises _Unlike: it is of another kind
    """
    if isinstance(value, base.NovaObject):
        found: list[Any] = [value.__class__]
        for name, part in vars(value).items():
            if name[:_PREFIX_LENGTH] == _PREFIX:
                found += (name, part if part.__class__ in _PLAIN else _content(part))
        return tuple(found)
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, set):
        return (frozenset(value),)
    if isinstance(value, list):
        return tuple(value)
    raise _Unlike(str(type(value)))


def copied(value: Any) -> Any:
    """Return a copy of a part of a RequestSpec, of whatever kind."""
    try:
        return _copied(value)
    except _Unlike:
        return copy.deepcopy(value)


def _copied(value: Any) -> Any:
    """Return a copy of what Nova set in a RequestSpec; nobody's change is seen in the other.

    As a deep copy would, in a tenth of its time.

    :raises _Unlike: it is of another kind
    """
    if value.__class__ in _PLAIN:
        return value
    if not isinstance(value, base.NovaObject):
        raise _Unlike(str(type(value)))
    made = object.__new__(value.__class__)
    held = vars(made)
    held.update(vars(value))
    made._changed_fields = set(value._changed_fields)
    for name, part in vars(value).items():
        if name[:_PREFIX_LENGTH] != _PREFIX or part.__class__ in _PLAIN:
            continue
        if not isinstance(part, set | list) or not all(each.__class__ in _PLAIN for each in part):
            raise _Unlike(name)
        copied: Any = part.__class__(part)
        held[name] = copied
        if isinstance(part, fields.CoercedCollectionMixin):
            copied.enable_coercing(part._element_type, made, part._field)
    return made


def install() -> None:
    """Put the functions in the place of Nova's own; idempotent.

    What somebody else replaced (a test, another plugin) is left alone.
    """
    for logger in _LOGGERS:
        logger.addFilter(_counter)
    if request_filter.process_reqspec is _process:
        request_filter.process_reqspec = process_reqspec
    if scheduler_utils.resources_from_request_spec is _resources:
        scheduler_utils.resources_from_request_spec = resources_from_request_spec
    # Now, and not while the first request waits.
    _unknown()
