# SPDX-License-Identifier: Apache-2.0
"""Starts Nova's processes as their commands do, one fork per case.

Run by path, with or without the plugin installed: it imports Nova only, and the
modules that are named behind the first argument. Nova's libraries are imported once
(seconds), then each case is a process of its own that parses its own nova.conf.
Reads a JSON list of cases on standard input and writes a JSON object of results by
name to the file named as first argument.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import os
import pathlib
import socket
import sqlite3
import sys
import tempfile
import threading
import traceback
from typing import Any


class Touched(Exception):
    """Something opened a connection while it was not to."""


@contextlib.contextmanager
def _no_connections(attempts: list[str]) -> Any:
    """Refuse and note every connection to a server or a database file."""
    own = (sqlite3.connect, socket.socket.connect, socket.getaddrinfo)

    def refuse(name: str) -> Any:
        def refused(*args: Any, **kwargs: Any) -> Any:
            attempts.append(f"{name}{args!r}")
            raise Touched(name)

        return refused

    sqlite3.connect = refuse("sqlite3.connect")  # type: ignore[assignment]
    socket.socket.connect = refuse("socket.connect")  # type: ignore[method-assign]
    socket.getaddrinfo = refuse("getaddrinfo")
    try:
        yield
    finally:
        sqlite3.connect, socket.socket.connect, socket.getaddrinfo = own  # type: ignore


def _describe() -> dict[str, Any]:
    """Return what an observer sees of a configured process."""
    from nova import objects, rpc, service
    from nova.db.main import api as main_db

    rpc_notifiers = {"versioned": rpc.NOTIFIER, "legacy": rpc.LEGACY_NOTIFIER}
    names = "ComputeNode ComputeNodeList Service Instance Migration Aggregate HostMapping"
    found = {
        "enabled": {name: notifier.is_enabled() for name, notifier in rpc_notifiers.items()},
        "managers": dict(service.SERVICE_MANAGERS),
        "objects": {name: getattr(objects, name).__module__ for name in names.split()},
        "registry": {
            name: [cls.__module__ for cls in objects.base.NovaObjectRegistry.obj_classes()[name]]
            for name in names.split()
        },
        # Where the code stands that writes a compute node.
        "writes_nodes": pathlib.Path(main_db.compute_node_update.__code__.co_filename).stem,
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "plugin_modules": sorted(n for n in sys.modules if n.startswith("nova_nodb_scheduler")),
    }
    status = sys.modules.get("nova.cmd.status")
    if status is not None:
        count = status.UpgradeCommands._count_compute_nodes
        found["counts_nodes"] = pathlib.Path(count.__code__.co_filename).stem
    reporting = sys.modules.get("nova_nodb_scheduler.nova_adapter.reporting.change_reporter")
    if reporting is not None:
        found["reports"] = reporting._reporter is not None
    return found


def _count_notifications(counts: collections.Counter[str]) -> None:
    """Count payloads that are built and messages that leave, by driver and event."""
    from nova.notifications.objects import base
    from oslo_messaging import transport
    from oslo_messaging.notify import _impl_test

    build = base.NotificationPayloadBase.__init__
    send = transport.Transport._send_notification
    note = _impl_test.TestDriver.notify

    def building(self: Any, *args: Any, **kwargs: Any) -> None:
        counts[f"built {type(self).__name__}"] += 1
        build(self, *args, **kwargs)

    def sending(self: Any, target: Any, ctxt: Any, message: Any, **kwargs: Any) -> Any:
        counts["sent"] += 1
        return send(self, target, ctxt, message, **kwargs)

    def noting(self: Any, ctxt: Any, message: Any, priority: Any, retry: Any) -> Any:
        counts[f"noted {message['event_type']} {priority}"] += 1
        return note(self, ctxt, message, priority, retry)

    base.NotificationPayloadBase.__init__ = building
    transport.Transport._send_notification = sending
    _impl_test.TestDriver.notify = noting


def _act() -> None:
    """Write services and aggregates as nova-api does."""
    from nova import context, objects

    admin = context.get_admin_context()
    service = objects.Service(admin, host="h1", binary="nova-compute", topic="compute")
    service.create()
    service.disabled = True
    service.disabled_reason = "counted"
    service.save()
    service.report_count += 1
    service.save()
    service.destroy()
    aggregate = objects.Aggregate(admin, name="a1", metadata={"availability_zone": "z"})
    aggregate.create()
    aggregate.update_metadata({"ssd": "true"})
    aggregate.add_host("h1")
    aggregate.delete_host("h1")
    aggregate.destroy()


def _configure(case: dict[str, Any], conf_file: str) -> dict[str, Any]:
    from nova import config, objects

    attempts: list[str] = []
    plugins: list[str] = []
    if case.get("count_plugins"):
        assembly = importlib.import_module("nova_nodb_scheduler.nova_adapter.assembly")
        own = assembly.Plugin.__init__

        def making(self: Any, conf: Any) -> None:
            plugins.append("made")
            own(self, conf)

        assembly.Plugin.__init__ = making
    with _no_connections(attempts):
        config.parse_args(sys.argv, default_config_files=[conf_file])
    objects.register_all()
    return {**_describe(), "attempts": attempts, "plugins": len(plugins)}


def _run(case: dict[str, Any], conf_file: str) -> dict[str, Any]:
    kind = case["kind"]
    if kind == "inspect":
        return _configure(case, conf_file)
    if kind == "old_nova":
        releases = importlib.import_module("nova_nodb_scheduler.nova_adapter.start_checks")
        releases.metadata.version = lambda name: "29.1.0"
        return _configure(case, conf_file)
    if kind == "act":
        counts: collections.Counter[str] = collections.Counter()
        _count_notifications(counts)
        found = _configure(case, conf_file)
        _act()
        return {**found, "counts": dict(counts)}
    # A command's main function, up to the moment at which its service is made.
    from nova import service

    served: list[str] = []

    def create(*args: Any, binary: str, **kwargs: Any) -> None:
        served.append(service.SERVICE_MANAGERS[binary])

    service.Service.create = create  # type: ignore[method-assign,assignment]
    service.serve = lambda server, workers=None: None
    service.wait = lambda: None
    module, _, name = case["call"].partition(":")
    getattr(importlib.import_module(module), name)()
    return {**_describe(), "served": served}


def _child(case: dict[str, Any], result: pathlib.Path) -> int:
    directory = pathlib.Path(tempfile.mkdtemp(dir=result.parent))
    conf_file = directory / "nova.conf"
    conf_file.write_text(case.get("conf", ""))
    sys.argv = (
        [*case["argv"]]
        if case["kind"] in ("inspect", "act", "old_nova")
        else [*case["argv"], "--config-file", str(conf_file), *case.get("arguments", ())]
    )
    os.environ.update({"OS_NOVA_CONFIG_DIR": str(directory), "OS_NOVA_CONFIG_FILES": "nova.conf"})
    if case["kind"] == "wsgi":
        sys.argv = [*case["argv"]]
    errors = os.open(directory / "stderr", os.O_CREAT | os.O_WRONLY)
    os.dup2(errors, 2)
    found: dict[str, Any] = {}
    code = 0
    try:
        found = _run(case, str(conf_file))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            # As the interpreter does.
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        code = 99
        traceback.print_exc()
    sys.stderr.flush()
    text = (directory / "stderr").read_text()
    result.write_text(json.dumps({**found, "code": code, "stderr": text}))
    return code


def main() -> None:
    """Import Nova, then run each case in a child."""
    cases = json.load(sys.stdin)
    results = pathlib.Path(sys.argv[1])
    from nova.cmd import (  # noqa: F401
        conductor,
        manage,
        scheduler,
    )
    from nova.db.api import models as api_models  # noqa: F401
    from nova.db.main import models as main_models  # noqa: F401
    from nova.notifications.objects import aggregate, service  # noqa: F401
    from sqlalchemy import orm

    # Each process does so at its first statement.
    orm.configure_mappers()
    # What the plugin stands on, not the plugin: a second less for each case.
    for library in ("numpy", "orjson", "prometheus_client", "alembic", "pymemcache"):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    # The children share it as long as their collectors leave it alone.
    gc.freeze()

    found = {}
    for case in cases:
        path = results.parent / f"{case['name']}.json"
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(_child(case, path))
            except BaseException:
                traceback.print_exc()
                os._exit(98)
        os.waitpid(pid, 0)
        found[case["name"]] = json.loads(path.read_text()) if path.exists() else None
    results.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
