# SPDX-License-Identifier: Apache-2.0
"""Finds the synchronizer driver an operator named, by its entry point."""

from __future__ import annotations

from typing import Any

from stevedore import driver, named
from stevedore import exception as stevedore_exceptions

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import contract

NAMESPACE = "nova_nodb_scheduler.synchronizer"
OPTION = "[nodb_scheduler] synchronizer"

#: Extra of this package that brings a client library, by its module.
_EXTRAS = {"pymemcache": "memcached", "pymysql": "mysql", "psycopg": "postgresql"}


def installed(group: str) -> tuple[str, ...]:
    """Return the names in an entry point group, sorted; imports none of what they stand for.

    A process reads the metadata of all that is installed once, however often it asks.
    """
    return tuple(sorted(set(named.NamedExtensionManager(group, []).entry_points_names())))


def available() -> tuple[str, ...]:
    """Return the names of all installed drivers, sorted; imports none of them."""
    return installed(NAMESPACE)


def load_class(name: str) -> Any:
    """Return a driver's class, without configuring it.

    :raises ConfigurationError: there is no such driver, or a library it needs
        cannot be imported
    """
    choices = ", ".join(available())
    if name not in available():
        raise errors.ConfigurationError(OPTION, name, f"set it to one of: {choices}.")
    try:
        return driver.DriverManager(NAMESPACE, name, on_load_failure_callback=_raise).driver
    except ImportError as exc:
        module = (exc.name or "").partition(".")[0]
        missing = f"module {module!r}" if module else "a library"
        extra = _EXTRAS.get(module, name)
        raise errors.ConfigurationError(
            OPTION,
            name,
            f"{missing} cannot be imported ({exc}). Install it with "
            f"'pip install nova-nodb-scheduler[{extra}]', or choose another of: {choices}.",
        ) from exc
    except stevedore_exceptions.NoUniqueMatch as exc:
        raise errors.ConfigurationError(
            OPTION, name, f"more than one installed package offers it: {exc}. Uninstall one."
        ) from exc


def load(name: str, conf: Any) -> contract.Synchronizer:
    """Return the named driver, constructed from its own option group.

    Does no I/O: the caller opens it, in the process that uses it.

    :param name: value of ``[nodb_scheduler] synchronizer``
    :param conf: an oslo.config ``ConfigOpts``; the driver registers its
        options there
    :raises ConfigurationError: see :func:`load_class`; or an option of the
        driver has a value that cannot work
    """
    driver_class = load_class(name)
    driver_class.register_opts(conf)
    synchronizer = driver_class.from_config(conf)
    if not isinstance(synchronizer, contract.Synchronizer):
        raise errors.ConfigurationError(
            OPTION,
            name,
            f"{driver_class.__module__}:{driver_class.__qualname__} does not implement the "
            f"driver contract; use one of: {', '.join(available())}.",
        )
    return synchronizer


def _raise(_manager: object, _entry_point: object, exc: BaseException) -> None:
    # stevedore's own way is one log line that is easily missed.
    raise exc
