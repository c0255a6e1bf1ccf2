# SPDX-License-Identifier: Apache-2.0
"""Finds vectorised filters and weighers that other packages bring, by entry point.

An operator's own filter or weigher runs on host objects, host by host, unless
an installed package has a vectorised class for it: an entry point named like
his class, in the group of its kind.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from typing import Any, TypeVar

from stevedore import named

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import contract

FILTERS = "nova_nodb_scheduler.filter"
WEIGHERS = "nova_nodb_scheduler.weigher"

#: Modules of the built-ins: they stand for Nova's own classes, and for no other
#: class that happens to have the same name.
_BUILT_IN = "nova_nodb_scheduler.scheduling."

_Plugin = TypeVar("_Plugin", contract.Filter, contract.Weigher)


def available(group: str) -> tuple[str, ...]:
    """Return the names of all installed classes of a group, sorted; imports none of them."""
    return tuple(sorted(importlib.metadata.entry_points(group=group).names))


def filter_class(name: str) -> type[contract.Filter] | None:
    """Return the class that a package brings for an operator's filter; None for none.

    :param name: of the operator's class
    :raises ConfigurationError: it cannot be imported, is no filter, is not
        named so, or comes from two packages
    """
    return _load(FILTERS, name, contract.Filter)  # type: ignore[type-abstract]


def weigher_class(name: str) -> type[contract.Weigher] | None:
    """Return the class that a package brings for an operator's weigher; see above."""
    return _load(WEIGHERS, name, contract.Weigher)  # type: ignore[type-abstract]


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
    kind = f"nova_nodb_scheduler.scheduling.contract.{base.__name__}"
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
