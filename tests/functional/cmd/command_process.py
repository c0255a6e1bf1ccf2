# SPDX-License-Identifier: Apache-2.0
"""Runs commands of the plugin as their console scripts do, one fork per case.

Run by path. Nova's libraries are imported once (seconds), then each case is a
process of its own, so that what is measured is what the command does. Reads a
JSON list of cases on standard input and writes a JSON object of results by name
to the file named as first argument. A case that does not end is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

#: What a console script calls, by its name.
PROGRAMS = {
    "nova-nodb-manage": "nova_nodb_scheduler.cmd.manage",
    "nova-nodb-status": "nova_nodb_scheduler.cmd.status",
    "nova-nodb-simulate": "nova_nodb_scheduler.cmd.simulate",
}
_IMPORTED = (
    "nova.config",
    "nova.context",
    "nova.objects",
    "nova.scheduler.client.report",
    "nova.servicegroup",
    "oslo_messaging._drivers.impl_rabbit",
    "pymysql",
    "oslo_reports.guru_meditation_report",
    "nova_nodb_scheduler.cmd.application",
    "nova_nodb_scheduler.cmd.manage",
    "nova_nodb_scheduler.cmd.simulate",
    "nova_nodb_scheduler.cmd.status",
    "nova_nodb_scheduler.cmd.upgrade_check.check_command",
    "nova_nodb_scheduler.nova_adapter.activation",
    "nova_nodb_scheduler.nova_adapter.compute_nodes.serving.node_serving",
    "nova_nodb_scheduler.nova_adapter.manager",
    "nova_nodb_scheduler.nova_adapter.orphans.orphan_audit",
    "nova_nodb_scheduler.nova_adapter.placement.mirror.bulk_import",
    "nova_nodb_scheduler.nova_adapter.placement.mirror.mirror_assembly",
    "nova_nodb_scheduler.nova_adapter.reporting.nova_objects",
    "nova_nodb_scheduler.nova_adapter.reporting.scope_transfer",
    "nova_nodb_scheduler.nova_adapter.service.made_requests",
    "nova_nodb_scheduler.nova_adapter.rpc_server",
    "nova_nodb_scheduler.synchronizer.drivers.etcd",
    "nova_nodb_scheduler.synchronizer.drivers.memcached",
    "nova_nodb_scheduler.synchronizer.drivers.redis",
    "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy",
    "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy.migration",
)
#: Cases that run at the same time: most of them wait.
_TOGETHER = 10
KILLED_SECONDS = 30.0


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def give_up_rights() -> None:
    """Have files' modes hold for this process although it is root's."""
    header = _CapabilityHeader(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), ctypes.byref(none)):
        raise OSError(ctypes.get_errno(), "capset")


def _child(case: dict[str, Any], directory: pathlib.Path) -> int:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(directory / name, os.O_CREAT | os.O_WRONLY)
        os.dup2(opened, descriptor)
    sys.argv = [case["program"], *case["arguments"]]
    os.environ.update(case["environment"])
    os.chdir(case["directory"])
    if case["without_rights"]:
        give_up_rights()
    if case["closed_stdout"]:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
    if case["interrupted_after"]:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, case["interrupted_after"])
    main = importlib.import_module(PROGRAMS[case["program"]]).main
    try:
        return int(main())
    except SystemExit as ended:
        if isinstance(ended.code, str):
            # As the interpreter does.
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1


def _leave(status: int) -> None:
    """End as an interpreter does: it waits for threads, and flushes."""
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


class _Running:
    def __init__(self, case: dict[str, Any], directory: pathlib.Path) -> None:
        self.case, self.directory = case, directory
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _leave(_child(case, directory))
            finally:
                os._exit(98)
        self.process = os.pidfd_open(self.pid)
        self._queued: dict[str, float] = {}

    def own_seconds(self) -> float:
        """Return how long it took, but for what its threads waited for a processor."""
        queued = dict(self._queued)
        main = queued.pop(str(self.pid), 0.0)
        # While the main thread waits for others, they wait for a processor.
        waited = main + max(queued.values(), default=0.0)
        return max(0.0, time.monotonic() - self.began - waited)

    def killed(self) -> bool:
        if self.own_seconds() < KILLED_SECONDS:
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True

    def result(self, killed: bool) -> dict[str, Any]:
        self.look()
        seconds = self.own_seconds()
        os.close(self.process)
        _pid, status = os.waitpid(self.pid, 0)
        return {
            "status": None if killed else os.waitstatus_to_exitcode(status),
            "seconds": seconds,
            "stdout": (self.directory / "stdout").read_text(),
            "stderr": (self.directory / "stderr").read_text(),
        }

    def look(self) -> None:
        """See how long its threads could have run and had no processor: that is the machine's."""
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    self._queued[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9


def main() -> None:
    """Import Nova, then run each case in a child, some at a time."""
    cases = json.load(sys.stdin)
    results = pathlib.Path(sys.argv[1])
    importlib.import_module("nova_nodb_scheduler.cmd.patching").for_threads()
    for name in _IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Nova's models take a second at the first statement.
    importlib.import_module("nova.db.main.models")
    importlib.import_module("nova.db.api.models")
    importlib.import_module("sqlalchemy.orm").configure_mappers()
    importlib.import_module("nova.objects").register_all()
    # The children share it as long as their collectors leave it alone.
    gc.freeze()
    found = {}
    waiting, running = list(cases), []
    while waiting or running:
        while waiting and len(running) < _TOGETHER:
            directory = pathlib.Path(tempfile.mkdtemp(dir=results.parent))
            running.append(_Running(waiting.pop(0), directory))
        ended, _, _ = select.select([each.process for each in running], [], [], 0.2)
        for each in list(running):
            each.look()
            killed = each.killed() if each.process not in ended else False
            if killed or each.process in ended:
                running.remove(each)
                found[each.case["name"]] = each.result(killed)
    results.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
