# SPDX-License-Identifier: Apache-2.0
"""A conductor and a reader in processes of their own, by a nova.conf of their own.

Each is told what to do by one pipe and answers, a call at a time. It ends with its pipe.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import Any
from unittest import mock

from nova_nodb_scheduler.testing import patience
from tests import forking

#: How long a call may take: that of a process that lives, on a busy machine.
_ANSWER_SECONDS = 60.0
_CONTEXT = forking.context(
    "nova.cmd.conductor",
    "nova.cmd.scheduler",
    "nova_nodb_scheduler.nova_adapter.conductor_manager",
    "nova_nodb_scheduler.nova_adapter.activation",
    "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy",
    __name__,
)


class NovaProcess:
    """A process that is forked; its calls are its methods by name.

    :param role: ``conductor`` or ``reader``
    """

    def __init__(self, role: str, conf_file: pathlib.Path) -> None:
        self._pipe, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(other, role, str(conf_file)))
        self._process.start()
        other.close()
        self.answer()

    def ask(self, *call: Any) -> Any:
        self._pipe.send(call)
        return self.answer()

    def answer(self) -> Any:
        if not self._pipe.poll(_ANSWER_SECONDS):
            raise patience.OutOfPatience(f"process {self._process.pid} does not answer")
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def signal(self, how: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, how)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        told = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text()
        return told.rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        """End it with no word; idempotent, of one that is stopped, too."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _run(pipe: connection.Connection, role: str, conf_file: str) -> None:
    # As the command does: the plugin goes by the program's name.
    sys.argv = [f"nova-{'conductor' if role == 'conductor' else 'scheduler'}"]
    log = pathlib.Path(conf_file).with_suffix(f".{os.getpid()}.log")
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
    try:
        made = _Conductor(conf_file) if role == "conductor" else _Reader(conf_file)
        pipe.send("started")
        while True:
            name, *arguments = pipe.recv()
            pipe.send(getattr(made, name)(*arguments))
            if name == "end":
                break
    except EOFError:
        pass
    except Exception as error:
        pipe.send(AssertionError(repr(error)))
    os._exit(0)


def _configure(conf_file: str) -> None:
    from nova import config, objects

    config.parse_args(sys.argv, default_config_files=[conf_file])
    objects.register_all()


class _Conductor:
    """Nova's conductor with the plugin, without a bus."""

    def __init__(self, conf_file: str) -> None:
        _configure(conf_file)
        from nova import service

        from nova_nodb_scheduler.nova_adapter import conductor_manager

        assert service.SERVICE_MANAGERS["nova-conductor"].startswith("nova_nodb_scheduler")
        # It looks for Placement as it begins, and asks it nothing here.
        with mock.patch("nova.scheduler.client.report.report_client_singleton", new=object):
            self._manager = conductor_manager.ConductorManager()
            self._manager.init_host(None)

    def beat(self, uuid: str) -> int:
        """Save a service's heartbeat, as its nova-compute has a conductor do; return its count."""
        from nova import context, objects

        service = objects.Service.get_by_uuid(context.get_admin_context(), uuid)
        service.report_count += 1
        service.save()
        return int(service.report_count)

    def journal(self) -> Mapping[str, Any]:
        """Return what became of the heartbeats that were handed to its journal."""
        import attrs

        reporter = self._manager._nodb_reporter
        assert reporter is not None
        figures = reporter.status().journal
        is_on = reporter.journal is not None and reporter.journal.is_on
        return {"is_on": is_on, **({} if figures is None else attrs.asdict(figures))}

    def end(self) -> None:
        """End in order."""
        self._manager.nodb_stop()


class _Reader:
    """A scheduler worker's memory of hosts."""

    def __init__(self, conf_file: str) -> None:
        _configure(conf_file)
        from nova_nodb_scheduler.nova_adapter import assembly

        plugin = assembly.get()
        self._runtime = plugin.scheduler(plugin.scopes.all_cells)
        self._runtime.start()

    def look(self, cell: str, services: Sequence[str]) -> Mapping[str, Any]:
        """Return why a cell is not proved, and how many seconds ago services were heard of."""
        from nova_nodb_scheduler.scheduling.facts import fact_source

        runtime = self._runtime
        # Before the snapshot: a process that stalls behind it makes nobody older.
        now = time.time()
        snapshot = runtime.store.snapshot()
        # Of one snapshot: what is proved is proved of these times.
        missing = runtime.judge.judge(snapshot, [cell]).missing.get(cell)
        source = fact_source.ServiceSource(snapshot, runtime.journals.look(snapshot))
        heard = {each: source.last_seen_seconds(each) for each in services}
        return {
            "missing": None if missing is None else missing.value,
            "ages": {key: None if at is None else now - at for key, at in heard.items()},
        }

    def end(self) -> None:
        self._runtime.stop()
