# SPDX-License-Identifier: Apache-2.0
"""What a vectorised filter and a vectorised weigher owe, and how those of others are found.

The pipeline makes one object of each class when it is assembled, and calls it
from any thread that holds the pipeline's lock: no call may block or do I/O,
and none may keep state between calls. A class comes by an entry point of the
groups ``nova_nodb_scheduler.filter`` and ``nova_nodb_scheduler.weigher``,
named like the class of Nova it stands for. An operator's own filter or weigher
runs on host objects, host by host, unless an installed package has a vectorised
class of its name there.

Two requests with equal keys, from all filters and weighers, share their
results; a changed host costs one call with that row. Hence the rule for both:
a row's result depends on the row's columns, on the aggregates the row is in,
and on what went into the key. Nothing else.
"""

from __future__ import annotations

import abc
import enum
import importlib.metadata
import inspect
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
from stevedore import named

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_frame

#: Which rows are asked for: all (``slice(None)``) or row numbers, shape (k,).
Rows: TypeAlias = slice | npt.NDArray[np.intp]

BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]


class OnHostObjects(enum.Enum):
    """Instead of a key: this request needs Nova's own code, host by host."""

    NEEDED = "needed"


#: None: every host passes, or weighs nothing; nothing is computed.
Key: TypeAlias = Hashable | OnHostObjects | None


class Filter(abc.ABC):
    """Says which hosts a request may go to.

    :cvar once_per_request: not asked again for the second server of a request
    :cvar on_rebuild: asked for rebuilds too
    """

    once_per_request: ClassVar[bool] = False
    on_rebuild: ClassVar[bool] = False

    def __init__(self, settings: decision_settings.SchedulingOptions) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        """The class of Nova this stands for."""
        return type(self).__name__

    @abc.abstractmethod
    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> Key:
        """Return all that decides besides the rows: equal keys, equal masks."""

    def screen(self, request: requests.Request, frame: host_frame.HostFrame) -> Hashable | None:
        """Return a key although :meth:`key` leaves the request to Nova's own code.

        :meth:`mask` then refuses hosts that Nova would certainly refuse, so that it
        is asked about fewer. None where columns cannot refuse any.
        """
        return None

    @abc.abstractmethod
    def mask(self, request: requests.Request, frame: host_frame.HostFrame, rows: Rows) -> BoolArray:
        """Return True for each of the rows that passes. Only asked for a real key or a screen."""


class Weigher(abc.ABC):
    """Says how good a host is.

    :cvar minval: lower end of the scale and floor of the raw weights; None:
        the least raw weight of the hosts that passed
    :cvar maxval: the same at the upper end
    :cvar speaks_for_request: it weighs what the request itself wants, as its group does;
        operators may tolerate that hosts about as good as the best are taken, not this
    """

    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    speaks_for_request: ClassVar[bool] = False

    def __init__(self, settings: decision_settings.SchedulingOptions) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        """The class of Nova this stands for."""
        return type(self).__name__

    @abc.abstractmethod
    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> Key:
        """Return all that decides besides the rows.

        None only where each host's share is 0 whatever the others weigh.
        """

    @abc.abstractmethod
    def raw(self, request: requests.Request, frame: host_frame.HostFrame, rows: Rows) -> FloatArray:
        """Return the raw weights of the rows, before floor, ceiling and scale."""

    @abc.abstractmethod
    def multiplier(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: Rows
    ) -> float | FloatArray:
        """Return the multiplier of the rows: one number, or one for each."""


#: Placement's JSON: ``{"allocations": {uuid: {"resources": ...}}, "mappings": ...}``.
AllocationRequest: TypeAlias = Mapping[str, Any]


@attrs.frozen(eq=False)
class WeighedOnObjects:
    """What a weigher of Nova's says of some hosts, in the order they were given.

    :param raw: shape (k,), floor and ceiling applied by the weigher itself
    :param multipliers: shape (k,)
    :param minval: lower end of the scale; None: the least of ``raw``
    :param maxval: upper end of the scale; None: the greatest of ``raw``
    """

    raw: FloatArray
    multipliers: FloatArray
    minval: float | None = None
    maxval: float | None = None


class HostObjects(Protocol):
    """Nova's own filters and weighers on Nova's host states, for one request.

    Called by the plan of that request, from the thread that uses the plan,
    never while the engine's lock is held: it may block.
    """

    def filter(self, name: str, uuids: Sequence[str], index: int) -> Collection[str]:
        """Return the hosts that pass; ``index`` counts the servers of the request."""

    def is_apart(self, name: str, *, is_chosen: bool) -> bool:
        """Tell whether a filter may be asked about some hosts, and about others later or never.

        :param is_chosen: the operator has chosen so: it is enough that the
            filter looks at one host at a time; else nobody must see a difference
        """

    def weigh(self, name: str, uuids: Sequence[str]) -> WeighedOnObjects:
        """Weigh hosts; one number for each uuid, in their order."""

    def allocation_requests(self, uuid: str) -> Sequence[AllocationRequest]:
        """Return those that the filters left of a host's allocation requests."""

    def consume(self, uuid: str, instance_uuid: str | None) -> None:
        """Take a server's share of a host, for what no column shows."""


def as_key(*parts: Any) -> Hashable:
    """Return a key made of parts; mappings and lists among them are frozen."""
    return tuple(_hashable(part) for part in parts)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict) or hasattr(value, "items"):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(each) for each in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(_hashable(each) for each in value)
    hash(value)
    return value  # type: ignore[no-any-return]


FILTERS = "nova_nodb_scheduler.filter"
WEIGHERS = "nova_nodb_scheduler.weigher"

#: Modules of the built-ins: they stand for Nova's own classes, and for no other
#: class that happens to have the same name.
_BUILT_IN = "nova_nodb_scheduler.scheduling."

_Plugin = TypeVar("_Plugin", Filter, Weigher)


def available(group: str) -> tuple[str, ...]:
    """Return the names of all installed classes of a group, sorted; imports none of them."""
    return tuple(sorted(importlib.metadata.entry_points(group=group).names))


def filter_class(name: str) -> type[Filter] | None:
    """Return the class that a package brings for an operator's filter; None for none.

    :param name: of the operator's class
    :raises ConfigurationError: it cannot be imported, is no filter, is not
        named so, or comes from two packages
    """
    return _load(FILTERS, name, Filter)  # type: ignore[type-abstract]


def weigher_class(name: str) -> type[Weigher] | None:
    """Return the class that a package brings for an operator's weigher; see above."""
    return _load(WEIGHERS, name, Weigher)  # type: ignore[type-abstract]


def _load(group: str, name: str, base: type[_Plugin]) -> type[_Plugin] | None:
    extensions = named.NamedExtensionManager(
        group,
        [name],
        on_load_failure_callback=_refuse,
        on_missing_entrypoints_callback=_pass_over,
    )
    found = [each for each in extensions if not each.module_name.startswith(_BUILT_IN)]
    if not found:
        return None
    option = f"entry point {group}"
    if len(found) > 1:
        targets = ", ".join(sorted(each.entry_point_target for each in found))
        raise errors.ConfigurationError(
            option, name, f"more than one installed package offers it: {targets}. Uninstall one."
        )
    plugin, target = found[0].plugin, found[0].entry_point_target
    kind = f"nova_nodb_scheduler.scheduling.pipeline.plugin_contract.{base.__name__}"
    if not (inspect.isclass(plugin) and issubclass(plugin, base)):
        raise errors.ConfigurationError(
            option, name, f"{target} is no subclass of {kind}: make it one, or uninstall it."
        )
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(plugin.__abstractmethods__))
        raise errors.ConfigurationError(
            option, name, f"{target} does not implement {missing} of {kind}."
        )
    if plugin.__name__ != name:
        raise errors.ConfigurationError(
            option,
            name,
            f"{target} is called {plugin.__name__}: name the class and its entry point like "
            "the class of Nova's that it stands for.",
        )
    return plugin


def _refuse(_manager: object, entry_point: Any, exc: BaseException) -> None:
    # stevedore's own way is one log line that is easily missed.
    raise errors.ConfigurationError(
        f"entry point {entry_point.group}",
        entry_point.name,
        f"{entry_point.value} cannot be loaded ({exc}): install what it needs, or uninstall "
        "the package that brings it.",
    ) from exc


def _pass_over(_names: object) -> None:
    """Most of an operator's classes have no vectorised twin: say nothing of it."""
