# SPDX-License-Identifier: Apache-2.0
"""Start, signal and end processes, each in its own session, known by its pid file."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessTable:
    """The processes of one stack. A pid is trusted only while it still names our session leader.

    Not thread-safe for one name; different names may be handled from different threads.
    """

    def __init__(self, run: pathlib.Path, log: pathlib.Path) -> None:
        self._run = run
        self._log = log

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> int:
        """Start ``command`` detached; its output is appended to log/NAME.out. A no-op if alive."""
        alive = self.pid(name)
        if alive is not None:
            return alive
        with (self._log / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                cwd=self._run,
            )
        self._pid_file(name).write_text(f"{process.pid} {_start_ticks(process.pid)}\n")
        return process.pid

    def pid(self, name: str) -> int | None:
        """The pid of a living process, None otherwise."""
        try:
            pid, ticks = self._pid_file(name).read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        _reap(int(pid))
        # A pid alone may have been given to a stranger; together with its start time it may not.
        return int(pid) if _start_ticks(int(pid)) == ticks else None

    def members(self, name: str) -> list[int]:
        """The pids of the process and its forked workers (its whole session)."""
        leader = self.pid(name)
        return [] if leader is None else [p for p in _all_pids() if _session(p) == leader]

    def send(self, name: str, signal_number: int) -> bool:
        """Signal the whole process group; False when nothing runs under that name."""
        pid = self.pid(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal_number)
        return True

    def stop(self, name: str, signal_number: int, timeout_seconds: float = 20.0) -> None:
        """Signal and wait until it is gone; kill what outlives the timeout. Idempotent."""
        if self.send(name, signal_number) and not self.wait_gone(name, timeout_seconds):
            self.send(name, signal.SIGKILL)
            self.wait_gone(name, 5.0)
        self._pid_file(name).unlink(missing_ok=True)

    def wait_gone(self, name: str, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while self.members(name):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def is_connected(self, name: str, port: int) -> bool:
        """Whether a process of that name has an established TCP connection to a loopback port."""
        inodes = _inodes_connected_to(port)
        return any(_has_socket(pid, inodes) for pid in self.members(name))

    def processor_seconds(self, name: str) -> float:
        """User and system time of the process and its forked workers, since each began."""
        fields = [_stat_fields(pid) for pid in self.members(name)]
        return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._run.glob("*.pid"))

    def _pid_file(self, name: str) -> pathlib.Path:
        return self._run / f"{name}.pid"


def wait_for_port(port: int, timeout_seconds: float) -> None:
    """Wait until something accepts connections on a loopback port."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing listens on 127.0.0.1:{port}") from error
            time.sleep(0.1)
        else:
            return


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _stat_fields(pid: int) -> list[str]:
    # The command name may hold spaces; what follows the last parenthesis does not.
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _start_ticks(pid: int) -> str | None:
    try:
        fields = _stat_fields(pid)
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _session(pid: int) -> int | None:
    try:
        fields = _stat_fields(pid)
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[3])


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _inodes_connected_to(port: int) -> set[str]:
    established = "01"
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == established and fields[2].endswith(f":{port:04X}"):
                    found.add(f"socket:[{fields[9]}]")
    return found


def _has_socket(pid: int, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(entry.path) in inodes for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False
