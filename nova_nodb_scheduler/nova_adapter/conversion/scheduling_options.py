# SPDX-License-Identifier: Apache-2.0
"""Nova's settings, filters and weighers, as the core takes them.

Nova's HostManager has chosen and made the operator's filters and weighers, and
has refused what it does not know. Each of its objects is answered by a
vectorised one, where there is one, or by its name: then it runs as it is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import attrs
from nova.scheduler import utils as nova_utils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import decision_settings, filters, weighers
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

LOG = logging.getLogger(__name__)

#: Settings that stand elsewhere than in [filter_scheduler] under the same name.
_ELSEWHERE = {
    "max_attempts": ("scheduler", "max_attempts"),
    "host_objects": ("nodb_scheduler", "host_objects"),
    "choice": ("nodb_scheduler", "choice"),
    "service_down_time": (None, "service_down_time"),
    "metrics_weight_multiplier": ("metrics", "weight_multiplier"),
    "metrics_weight_setting": ("metrics", "weight_setting"),
    "metrics_required": ("metrics", "required"),
    "metrics_weight_of_unavailable": ("metrics", "weight_of_unavailable"),
}
#: Settings of (name, number) pairs.
_PAIRS = {"image_props_weight_setting", "metrics_weight_setting"}
#: Settings that say what Nova's HostManager made.
_OBJECTS = {"enabled_filters", "weighers"}

_Plugin = TypeVar("_Plugin", plugin_contract.Filter, plugin_contract.Weigher)


def settings(conf: Any, host_manager: Any) -> decision_settings.SchedulingOptions:
    """Return Nova's settings; an option that this release lacks keeps its default.

    :param conf: Nova's configuration
    :param host_manager: Nova's HostManager
    :raises ValueError: oslo.config's own, for a value of the wrong type
    """
    values = dict(_values(conf))
    return decision_settings.SchedulingOptions(
        enabled_filters=tuple(type(each).__name__ for each in host_manager.enabled_filters),
        weighers=tuple(type(each).__name__ for each in host_manager.weighers),
        **values,
    )


def enabled_filters(
    chosen: decision_settings.SchedulingOptions, host_manager: Any
) -> tuple[plugin_contract.Filter | str, ...]:
    """Return the enabled filters in order; a name where Nova's object must be asked.

    :raises ConfigurationError: a vectorised filter of another package cannot be used
    """
    return _answered(
        "filters",
        host_manager.enabled_filters,
        lambda own: _class_for(own, "filters", filters.BUILT_IN, plugin_contract.filter_class),
        chosen,
    )


def enabled_weighers(
    chosen: decision_settings.SchedulingOptions, host_manager: Any
) -> tuple[plugin_contract.Weigher | str, ...]:
    """Return the weighers as Nova's handler runs them; a name where Nova's must be asked.

    :raises ConfigurationError: a vectorised weigher of another package cannot
        be used, or two weighers have one name
    """
    _refuse_namesakes(host_manager.weighers)
    return _answered(
        "weighers",
        host_manager.weighers,
        lambda own: _class_for(own, "weights", weighers.BUILT_IN, plugin_contract.weigher_class),
        chosen,
    )


def _values(conf: Any) -> Iterator[tuple[str, Any]]:
    for field in attrs.fields(decision_settings.SchedulingOptions):
        if field.name in _OBJECTS:
            continue
        group, name = _ELSEWHERE.get(field.name, ("filter_scheduler", field.name))
        if group is not None and group not in conf:
            continue
        section = conf if group is None else conf[group]
        if name not in section:
            continue
        value = section[name]
        if field.name in _PAIRS:
            full_name = f"{group}.{name}"
            pairs = nova_utils.parse_options(value, sep="=", converter=float, name=full_name)
            yield field.name, tuple(pairs)
        else:
            yield field.name, tuple(value) if isinstance(value, list) else value


def _class_for(
    own: Any,
    package: str,
    built_in: Mapping[str, type[_Plugin]],
    brought: Callable[[str], type[_Plugin] | None],
) -> type[_Plugin] | None:
    """Return the vectorised class for one of Nova's objects, or None.

    A built-in stands for Nova's very class: what an operator derived from it
    may do anything.
    """
    kind = type(own)
    module = str(kind.__module__)
    if module.startswith(f"nova.scheduler.{package}."):
        novas = getattr(sys.modules.get(module), kind.__name__, None)
        return built_in.get(kind.__name__) if novas is kind else None
    return brought(kind.__name__)


def _answered(
    what: str,
    owns: Any,
    class_for: Callable[[Any], type[_Plugin] | None],
    chosen: decision_settings.SchedulingOptions,
) -> tuple[_Plugin | str, ...]:
    answered: list[_Plugin | str] = []
    for own in owns:
        found = class_for(own)
        answered.append(type(own).__name__ if found is None else found(chosen))
    left = [each for each in answered if isinstance(each, str)]
    if left:
        LOG.info(
            "No vectorised form of the %(what)s %(names)s: they run on host objects, host by "
            "host, which costs most where many hosts are left for them.",
            {"what": what, "names": ", ".join(left)},
        )
    return tuple(answered)


def _refuse_namesakes(owns: Any) -> None:
    kinds: dict[str, type[Any]] = {}
    for own in owns:
        other = kinds.setdefault(type(own).__name__, type(own))
        if other is not type(own):
            raise errors.ConfigurationError(
                "[filter_scheduler] weight_classes",
                type(own).__name__,
                f"{other.__module__} and {type(own).__module__} both have a weigher of that "
                "name, and its share could not be told apart: rename one, or list one.",
            )
