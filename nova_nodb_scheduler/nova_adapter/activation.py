# SPDX-License-Identifier: Apache-2.0
"""Switches the plugin on inside an unmodified Nova service, by nova.conf alone.

``[oslo_messaging_notifications] driver`` is the one option through which Nova
loads foreign code in every control-plane process after the configuration is
parsed and before the service is created. The driver here notifies nobody.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any, NoReturn

import nova.service
from oslo_messaging.notify import notifier

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import assembly, option_checks, programs, reporting
from nova_nodb_scheduler.nova_adapter import reporter as reporter_module

LOG = logging.getLogger(__name__)

#: Our entry point in ``oslo.messaging.notify.drivers``.
DRIVER_NAME = "nodb_scheduler"

CONDUCTOR_MANAGER = "nova_nodb_scheduler.nova_adapter.conductor.ConductorManager"


def activate(conf: Any, role: str) -> assembly.Plugin:
    """Put the plugin into this process; idempotent for one configuration, no I/O.

    :param role: who this process is for its reporter
    :raises ConfigurationError: an option names something unknown
    :raises UnsupportedRelease: this Nova was not tested with the plugin
    """
    try:
        plugin = assembly.get()
        if plugin.conf is conf:
            # An explicit command changes scheduler_driver after the line in
            # nova.conf has activated the plugin.
            _replace_managers(plugin)
            return plugin
    except errors.ConfigurationError:
        LOG.debug("Activating nova_nodb_scheduler.")
    plugin = assembly.Plugin(conf)
    plugin.check()
    # Imported late: Nova's objects need a parsed configuration.
    from nova_nodb_scheduler.nova_adapter import objects
    from nova_nodb_scheduler.nova_adapter.placement import wiring

    objects.register()
    assembly.install(plugin)

    def make() -> reporter_module.Reporter:
        return plugin.reporter(role, lambda: reporter_module.EVERY_CELL, beats=role == "api")

    reporting.install(make(), plugin.scopes, make)
    if plugin.options.candidates == "memory":
        wiring.report_writes(plugin)
    _replace_managers(plugin)
    return plugin


def _replace_managers(plugin: assembly.Plugin) -> None:
    nova.service.SERVICE_MANAGERS["nova-conductor"] = CONDUCTOR_MANAGER
    if plugin.replaces_scheduler():
        cls = plugin.scheduler_class()
        nova.service.SERVICE_MANAGERS["nova-scheduler"] = f"{cls.__module__}.{cls.__qualname__}"


def _without_us(is_enabled: Any) -> Any:
    @functools.wraps(is_enabled)
    def enabled(self: Any) -> bool:
        names = self._driver_mgr.names()
        if DRIVER_NAME not in names:
            return bool(is_enabled(self))
        # 'noop' and nothing else means that Nova builds no payloads at all:
        # our presence must not change that.
        return [name for name in names if name != DRIVER_NAME] != ["noop"]

    enabled._nodb = True  # type: ignore[attr-defined]
    return enabled


def keep_notifications() -> None:
    """Have Nova decide about notifications as if our driver were not there; idempotent."""
    if not hasattr(notifier.Notifier.is_enabled, "_nodb"):
        notifier.Notifier.is_enabled = _without_us(notifier.Notifier.is_enabled)


class ActivationDriver(notifier.Driver):  # type: ignore[misc]
    """The notification driver whose construction activates the plugin.

    Nova constructs it once or twice per process, in ``rpc.init``, in every
    program that reads nova.conf; :mod:`.programs` says into which the plugin
    goes. There, a mistake in the configuration ends a service: stevedore would
    turn an exception into one line on stderr, and the service would run stock
    in silence. It never ends another program.
    """

    def __init__(self, conf: Any, topics: Any, transport: Any) -> None:
        super().__init__(conf, topics, transport)
        keep_notifications()
        program = programs.of(sys.argv[0], sys.modules)
        if program is None:
            # Compute nodes, consoles, scripts: they stay exactly stock.
            return
        try:
            activate(conf, program.role)
        except errors.UnsupportedRelease as error:
            # An upgrade of Nova must not stop it: stock, and loudly.
            option_checks.warn(
                f"nova_nodb_scheduler is NOT active, this service runs stock Nova: {error}"
            )
        except Exception as error:  # noqa: BLE001 - it must not end a stranger
            if not program.is_strict:
                option_checks.warn(
                    "nova_nodb_scheduler is NOT active here, what this program writes is "
                    f"found by the next sweep: {error}"
                )
                return
            _refuse(error)

    def notify(self, ctxt: Any, msg: Any, priority: Any, retry: Any) -> None:
        """Forward nothing: other drivers of the same option do that."""


def _refuse(error: Exception) -> NoReturn:
    """End a service, with the text of what is wrong."""
    if isinstance(error, errors.NodbError):
        raise SystemExit(f"nova_nodb_scheduler refuses to start: {error}") from error
    LOG.error("nova_nodb_scheduler cannot be activated.", exc_info=error)
    raise SystemExit(
        "nova_nodb_scheduler refuses to start, for an error of its own: "
        f"{type(error).__name__}: {error}. Remove its lines from nova.conf to go on."
    ) from error
