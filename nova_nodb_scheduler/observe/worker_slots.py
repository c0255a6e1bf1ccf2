# SPDX-License-Identifier: Apache-2.0
"""The workers of one service on one machine: a number for each, and what each has to tell.

They share a directory. A worker's number is the least whose lock is free; the
kernel frees it however the worker ends, so that the next one gets it, and its
series go on. What it counts is read from its socket when somebody asks: files
would be old, and those of a dead worker would have to be told from a live one's.

A directory holds, for each slot, ``NAME.lock`` (held while the worker lives; in
it, its labels) and ``NAME.sock``, and ``port.lock``, held by the worker that
serves all of them.

``serve_forever`` of the standard library waits in a poll that it looked up
when it was imported. In a service that eventlet patches later, that poll stops
all of the process: sockets know of the patch at each call, so :class:`Serving`
waits in ``accept``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from prometheus_client import core, registry, samples

from nova_nodb_scheduler.observe import metric_labels as identity_module

#: How late a stop is noticed.
_WAIT_SECONDS = 0.25


class Serving:
    """A server that listens, and its thread.

    :param server: bound and listening; closed by :meth:`stop`
    """

    def __init__(self, server: socketserver.TCPServer, name: str) -> None:
        self.server = server
        self._listener = server.socket
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening; idempotent."""
        self._stop.set()
        self._thread.join(timeout_seconds)
        self.server.server_close()

    def forsake(self) -> None:
        """Close the socket in a child that a fork copied it to, where no thread runs."""
        self._listener.close()

    def _serve(self) -> None:
        self._listener.settimeout(_WAIT_SECONDS)
        while not self._stop.is_set():
            try:
                # Both as the standard library's own loop does it.
                request, address = self.server.get_request()
            except OSError:
                # Nobody came, or who came has left; of a closed socket, too.
                self._stop.wait(0.001)
                continue
            try:
                self.server.process_request(request, address)
            except Exception:  # noqa: BLE001 - told by handle_error, as there
                self.server.handle_error(request, address)
                self.server.shutdown_request(request)


#: More workers than any machine runs of a service.
_MOST_SLOTS = 1024
#: A worker answers from memory: one that does not within this is frozen or overloaded.
_ANSWER_SECONDS = 1.0
#: All of them together, below the ten seconds that Prometheus waits by default.
_ALL_ANSWERS_SECONDS = 5.0


def dump(families: registry.Collector) -> bytes:
    """Return families of metrics as another process's :func:`load` reads them."""
    return json.dumps(
        [
            [each.name, each.documentation, each.type, [list(one[:3]) for one in each.samples]]
            for each in families.collect()
        ]
    ).encode()


def load(told: bytes) -> Iterator[core.Metric]:
    """Return what :func:`dump` was given.

    :raises ValueError: it is not whole
    """
    for name, text, kind, rows in json.loads(told):
        family = core.Metric(name, text, kind)
        family.samples = [samples.Sample(*row) for row in rows]
        yield family


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(_ALL_ANSWERS_SECONDS)
        with contextlib.suppress(OSError):
            self.request.sendall(self.server.tell())  # type: ignore[attr-defined]


class _SlotServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, path: str, tell: Callable[[], bytes]) -> None:
        self.tell = tell
        super().__init__(path, _Answer)


@attrs.frozen
class WorkerAnswer:
    """What one worker of the directory said.

    :param labels: who it is
    :param families: None where it lives and did not answer
    """

    labels: Mapping[str, str]
    families: Sequence[core.Metric] | None


class WorkerSlots:
    """One worker's place among those that share a directory.

    :param directory: made if it is not there
    :ivar worker: its number
    """

    def __init__(self, directory: pathlib.Path, identity: identity_module.MetricIdentity) -> None:
        self._directory = directory
        self._identity = identity
        self._locks: list[int] = []
        self._serving: Serving | None = None
        self._name = ""
        self.worker = 0

    def take(self) -> None:
        """Take the least free number; the worker is not seen before :meth:`answer`.

        :raises OSError: the directory cannot be used
        """
        # Whoever owns one of them decides what is told there in our name.
        for each, owners in (
            (self._directory.parent, (0, os.geteuid())),
            (self._directory, (os.geteuid(),)),
        ):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            if each.stat().st_uid not in owners:
                raise PermissionError(f"{each} belongs to another user")
        # Workers of one service on one host are alike; those of another have numbers of
        # their own. A digest, for the path of a socket has little room.
        who = f"{self._identity.role}\n{self._identity.host}\n{self._identity.cell}"
        digest = hashlib.sha256(who.encode()).hexdigest()[:12]
        for worker in range(_MOST_SLOTS):
            name = f"{self._identity.role}-{digest}-{worker}"
            held = self._lock(name)
            if held is not None:
                self._name, self.worker = name, worker
                os.ftruncate(held, 0)
                os.pwrite(held, json.dumps(self._identity.labels(worker)).encode(), 0)
                return
        raise OSError(f"{_MOST_SLOTS} workers have their places in {self._directory}")

    def answer(self, tell: Callable[[], bytes]) -> None:
        """Answer with what ``tell`` returns, in a thread, whoever asks.

        :raises OSError: the path is too long for a socket, or the file system has none
        """
        path = self._directory / f"{self._name}.sock"
        # The lock is ours: what lies there is of a worker that is gone.
        path.unlink(missing_ok=True)
        self._serving = Serving(_SlotServer(str(path), tell), "nodb-metrics-worker")

    def take_port(self) -> bool:
        """Take the duty of serving all workers; False while another has it.

        :raises OSError: the directory cannot be used
        """
        return self._lock("port") is not None

    def others(self) -> Iterator[WorkerAnswer]:
        """Ask the other workers; those that are gone are left out."""
        deadline = time.monotonic() + _ALL_ANSWERS_SECONDS
        for path in sorted(self._directory.glob("*.sock")):
            if path.stem != self._name:
                left = min(_ANSWER_SECONDS, deadline - time.monotonic())
                told = _ask(path, max(left, 0.01))
                if told is not None:
                    yield told

    def leave(self) -> None:
        """Give the number and the port's duty back; idempotent."""
        served, self._serving = self._serving, None
        if served is not None:
            served.stop()
            with contextlib.suppress(OSError):
                (self._directory / f"{self._name}.sock").unlink(missing_ok=True)
        self._close_locks()

    def forsake(self) -> None:
        """Close what a fork copied, in the child: it is the parent's."""
        served, self._serving = self._serving, None
        if served is not None:
            served.forsake()
        self._close_locks()

    def _close_locks(self) -> None:
        locks, self._locks = self._locks, []
        for each in locks:
            os.close(each)

    def _lock(self, name: str) -> int | None:
        opened = os.open(self._directory / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return None
        self._locks.append(opened)
        return opened


def _ask(path: pathlib.Path, seconds: float) -> WorkerAnswer | None:
    """Ask one worker; None where nobody listens."""
    deadline = time.monotonic() + seconds
    received = bytearray()
    try:
        labels: Mapping[str, Any] = json.loads(path.with_suffix(".lock").read_bytes())
    except (OSError, ValueError):
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(seconds)
            asked.connect(str(path))
            while part := asked.recv(1 << 16):
                received += part
                if time.monotonic() > deadline:
                    return WorkerAnswer(labels, None)
        return WorkerAnswer(labels, list(load(bytes(received))))
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    except (OSError, ValueError):
        # Nobody took the connection in time, or the worker ended in the middle.
        return WorkerAnswer(labels, None)
