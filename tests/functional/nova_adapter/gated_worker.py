# SPDX-License-Identifier: Apache-2.0
"""A process that takes requests as a scheduler worker does, from a real bus.

``gated_worker TRANSPORT_URL TOPIC NAME SECONDS``: all is proved once SIGUSR1
says so, or the bound of so many seconds has passed. It ends with SIGTERM as
Nova's service does. What it does is written to standard output, a word a line.
"""

from __future__ import annotations

import os
import pathlib
import posix
import signal
import sys
import tempfile
import threading
import time
from multiprocessing import connection
from typing import Any


def say(word: str) -> None:
    """Write a word at once: threads of one moment write theirs, too."""
    # Eventlet's own write refuses a second green thread.
    posix.write(1, f"{word}\n".encode())


class Manager:
    """In the place of Nova's: calls that take as long as they are told, and a cast."""

    def __init__(self, name: str, intake: Any) -> None:
        self._name = name
        self.nodb_intake = intake

    def work(self, _context: Any, seconds: float) -> str:
        say("begun")
        time.sleep(seconds)
        return self._name

    def tell(self, _context: Any) -> None:
        say("told")


def run(written: connection.Connection, *arguments: str) -> None:
    """Be the worker, in a process that was forked; what it writes goes there."""
    os.dup2(written.fileno(), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    written.close()
    main(*arguments)


def main(url: str, topic: str, name: str, bound_seconds: str) -> None:
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nodb-worker-"))
    path = directory / "nova.conf"
    path.write_text(
        f"[DEFAULT]\ntransport_url = {url}\nhost = {name}\nstate_path = {directory}\n"
        "[oslo_messaging_notifications]\ndriver = noop\n"
    )
    # Sets the mode of threads, as the command itself does.
    import nova.cmd.scheduler
    import nova.rpc
    import oslo_messaging
    from nova import config

    from nova_nodb_scheduler.nova_adapter.service import start_gate

    config.parse_args(["nova-scheduler"], default_config_files=[str(path)])
    proved = threading.Event()

    def judge() -> start_gate.StartProgress:
        missing = () if proved.is_set() else ("nothing is proved",)
        return start_gate.StartProgress(0.43, missing)

    signal.signal(signal.SIGUSR1, lambda *_args: proved.set())
    start_gate.install()
    intake = start_gate.RequestIntake(start_gate.RequestGate(judge, float(bound_seconds)))
    server = nova.rpc.get_server(
        oslo_messaging.Target(topic=topic, server=name), [Manager(name, intake)]
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_args: ended.set())
    server.start()
    say("started")
    while not ended.wait(0.1):
        pass
    server.stop()
    say("stopped")
    server.wait()
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
