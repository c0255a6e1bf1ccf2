# SPDX-License-Identifier: Apache-2.0
"""Switches the plugin on inside an unmodified Nova service, by nova.conf alone.

``[oslo_messaging_notifications] driver`` is the one option through which Nova
loads foreign code in every control-plane process after the configuration is
parsed and before the service is created. The driver here notifies nobody.

Every program that reads nova.conf loads the notification driver: consoles,
``nova-status``, scripts of the operator's. The plugin goes only into those that
write or read host states, listed here; a mistake in its options must never stop
one that has nothing to do with it.

================================== ====== ==================================
program                            strict why
================================== ====== ==================================
nova-scheduler                     yes    places from memory: must not run as
                                          something else than is configured
nova-conductor                     yes    reports its cell's writes
nova-api and its WSGI forms        yes    reports disabling, forcing down,
                                          deletions, aggregates
nova-manage                        no     reports what it writes; a sweep finds
                                          it where it could not
our own commands                   --     activate by themselves, with their own
                                          words for what is wrong
nova-compute, all others           --     stay exactly stock
================================== ====== ==================================

Where records answer for compute nodes ([nodb_scheduler] compute_nodes is not
``mirror``) all of them are strict, and an unsupported Nova ends them, too: stock,
they would write a table that does not count. ``nova-status`` counts records there.

Nova makes two payloads for every request, of the whole request, and hands them to
the drivers of ``[oslo_messaging_notifications]``. A driver that sends nothing is
given them too: they are a quarter of what a request costs the scheduler.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Container
from typing import Any, NoReturn

import attrs
import nova.service
from nova import rpc
from oslo_messaging.notify import _impl_noop, notifier

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter import assembly, start_checks
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter

LOG = logging.getLogger(__name__)


@attrs.frozen
class Program:
    """A program that the plugin goes into.

    :param role: who it is for its reporter
    :param is_strict: a mistake in the options ends it; else it runs stock
    """

    role: str
    is_strict: bool


_API = Program("api", is_strict=True)
_BY_NAME = {
    "nova-scheduler": Program("scheduler", is_strict=True),
    "nova-conductor": Program("conductor", is_strict=True),
    "nova-manage": Program("manage", is_strict=False),
    # Nova's own servers until 2026.1, and the scripts for WSGI servers.
    "nova-api": _API,
    "nova-api-os-compute": _API,
    "nova-api-metadata": _API,
    "nova-api-wsgi": _API,
    "nova-metadata-wsgi": _API,
    # What a WSGI server calls itself: nothing else that it hosts reads nova.conf.
    "uwsgi": _API,
    "mod_wsgi": _API,
    "gunicorn": _API,
}
#: Counts the table of compute nodes by itself; nothing else in it is replaced.
_STATUS, _STATUS_MODULE = "nova-status", "nova.cmd.status"
#: Loaded wherever Nova's API runs, whatever its server is called.
_API_MODULE = "nova.api.openstack.wsgi_app"


def program_of(path: str, loaded: Container[str]) -> Program | None:
    """Return what a program is; None for one that is left alone.

    :param path: as it was started, ``sys.argv[0]``
    :param loaded: names of the modules that it has imported
    """
    name = os.path.basename(path)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith("nova-"):
        return None
    return _API if _API_MODULE in loaded else None


#: Our entry point in ``oslo.messaging.notify.drivers``.
DRIVER_NAME = "nodb_scheduler"

CONDUCTOR_MANAGER = "nova_nodb_scheduler.nova_adapter.conductor_manager.ConductorManager"


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
    from nova_nodb_scheduler.nova_adapter.liveness import service_heartbeats
    from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_assembly
    from nova_nodb_scheduler.nova_adapter.reporting import nova_objects

    nova_objects.register()
    assembly.install(plugin)
    # Conductors and schedulers look at the modes of cells with their heartbeats.
    plugin.compute_nodes.install(looks_itself=role in ("api", "manage"))

    def make() -> change_reporter.ChangeReporter:
        return plugin.reporter(role, lambda: change_reporter.EVERY_CELL, heartbeats=role == "api")

    change_reporter.install(make(), plugin.scopes, make)
    service_heartbeats.install_reader(plugin.heartbeat_reader)
    if plugin.options.candidates == "memory":
        mirror_assembly.report_writes(plugin)
    if role == "api":
        _let_wait(plugin)
    _replace_managers(plugin)
    return plugin


def _let_wait(plugin: assembly.Plugin) -> None:
    """Have an API know of requests that wait, where there are any."""
    api = plugin.waiting_api()
    if api is not None:
        from nova_nodb_scheduler.nova_adapter.waiting import waiting_api

        waiting_api.install(api)


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
    program that reads nova.conf; :func:`program_of` says into which the plugin
    goes. There, a mistake in the configuration ends a service: stevedore would
    turn an exception into one line on stderr, and the service would run stock
    in silence. It never ends another program.
    """

    def __init__(self, conf: Any, topics: Any, transport: Any) -> None:
        super().__init__(conf, topics, transport)
        keep_notifications()
        program = program_of(sys.argv[0], sys.modules)
        if program is None:
            # Compute nodes, consoles, scripts: they stay exactly stock.
            if os.path.basename(sys.argv[0]) == _STATUS and _leaves_the_table(conf):
                _count_records(conf)
            return
        try:
            activate(conf, program.role)
        except Exception as error:  # noqa: BLE001 - it must not end a stranger
            if _leaves_the_table(conf):
                # A stock process would write it behind the records' back.
                _refuse(error)
            _run_stock(program, error)

    def notify(self, ctxt: Any, msg: Any, priority: Any, retry: Any) -> None:
        """Forward nothing: other drivers of the same option do that."""


def _run_stock(program: Program, error: Exception) -> None:
    """Go on without the plugin and say so, or end a service that must not."""
    if isinstance(error, errors.UnsupportedRelease):
        # An upgrade of Nova must not stop it: stock, and loudly.
        start_checks.warn_of_options(
            f"nova_nodb_scheduler is NOT active, this service runs stock Nova: {error}"
        )
    elif not program.is_strict:
        start_checks.warn_of_options(
            "nova_nodb_scheduler is NOT active here, what this program writes is "
            f"found by the next sweep: {error}"
        )
    else:
        _refuse(error)


def _count_records(conf: Any) -> None:
    """Have nova-status count compute nodes where they are; else it is stock."""
    try:
        plugin = assembly.Plugin(conf)
        plugin.check()
        nodes = plugin.compute_nodes
        assert isinstance(nodes, node_serving.NodeServing)  # by the configuration
        nodes.count_in(sys.modules[_STATUS_MODULE].UpgradeCommands)
    except Exception as error:  # noqa: BLE001 - its other checks are wanted all the more
        start_checks.warn_of_options(
            f"nova_nodb_scheduler: nova-status counts a table that does not count: {error}"
        )


def _leaves_the_table(conf: Any) -> bool:
    """Tell whether Nova's table of compute nodes does not count by the configuration.

    Whatever is wrong with it: a value that is none is not taken for the default.
    """
    try:
        nodb.register_opts(conf)
        return bool(conf[nodb.GROUP].compute_nodes != "mirror")
    except Exception:  # noqa: BLE001 - what keeps options from being read is told elsewhere
        texts = start_checks.written(conf).get(nodb.GROUP, {})
        return texts.get("compute_nodes", "mirror") != "mirror"


def _refuse(error: Exception) -> NoReturn:
    """End a service, with the text of what is wrong."""
    if isinstance(error, errors.NodbError):
        raise SystemExit(f"nova_nodb_scheduler refuses to start: {error}") from error
    LOG.error("nova_nodb_scheduler cannot be activated.", exc_info=error)
    raise SystemExit(
        "nova_nodb_scheduler refuses to start, for an error of its own: "
        f"{type(error).__name__}: {error}. Remove its lines from nova.conf to go on."
    ) from error


#: Drivers that do nothing with what they get.
_SILENT = (_impl_noop.NoOpDriver, ActivationDriver)


def notifications_are_heard(own: Any) -> bool:
    """Tell whether a notification of the scheduler, of either format, may reach anybody.

    True wherever that is not known to be otherwise.

    :param own: the scheduler manager's notifier, of the unversioned format
    """
    return not (_is_silent(getattr(own, "notifier", None)) and _is_silent(rpc.NOTIFIER))


def _is_silent(found: Any) -> bool:
    # A class of another's may do with a notification what it likes.
    if type(found).__module__ != notifier.__name__ or not isinstance(found, notifier.Notifier):
        return False
    return all(type(each.obj) in _SILENT for each in found._driver_mgr.extensions)
