# SPDX-License-Identifier: Apache-2.0
"""The namespaces that are installed, found through their entry points."""

from __future__ import annotations

from collections.abc import Iterable

from stevedore import extension

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces

#: Entry point group; each entry names a Namespace object.
GROUP = "nova_nodb_scheduler.namespace"


def load_namespaces(
    needed: Iterable[namespaces.Namespace] = (),
) -> tuple[namespaces.Namespace, ...]:
    """Return all declared namespaces, sorted by name.

    :param needed: those without which the caller's code cannot do its work
    :raises ConfigurationError: an entry point cannot be loaded, is no
        Namespace, or declares a name that another one has declared; or one that is
        needed is declared by none
    """
    manager = extension.ExtensionManager(GROUP, on_load_failure_callback=_refuse_unloadable)
    declared: dict[str, tuple[str, namespaces.Namespace]] = {}
    for found in manager:
        target = f"{found.name} = {found.entry_point.value}"
        namespace = found.plugin
        if not isinstance(namespace, namespaces.Namespace):
            raise errors.ConfigurationError(
                f"entry point of {GROUP}",
                target,
                f"it names a {type(namespace).__name__}, and must name a Namespace; correct "
                "or uninstall the package that declares it",
            )
        other, known = declared.setdefault(namespace.name, (target, namespace))
        # One object named twice is one declaration: a package that is
        # installed twice (a wheel and an editable copy) shows up so.
        if known is not namespace:
            raise errors.ConfigurationError(
                f"entry point of {GROUP}",
                target,
                f"namespace {namespace.name!r} is also declared by '{other}'; uninstall one",
            )
    undeclared = sorted({each.name for each in needed} - declared.keys())
    if undeclared:
        raise errors.ConfigurationError(
            f"entry points of {GROUP}",
            ", ".join(sorted(declared)),
            f"they do not declare {', '.join(undeclared)}, which this release works with: they "
            "are those of an installation before it. Install nova-nodb-scheduler anew (an "
            "editable installation, too: new code alone declares nothing), and restart",
        )
    return tuple(declared[name][1] for name in sorted(declared))


def followed(declared: Iterable[namespaces.Namespace]) -> tuple[namespaces.Namespace, ...]:
    """Return those of some namespaces that stores hold, in their order."""
    return tuple(each for each in declared if each.followed)


def _refuse_unloadable(
    manager: extension.ExtensionManager, entry_point: object, error: BaseException
) -> None:
    raise errors.ConfigurationError(
        f"entry point of {GROUP}",
        str(entry_point),
        f"it cannot be loaded ({error}); correct or uninstall the package that declares it",
    ) from error
