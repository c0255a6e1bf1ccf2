# SPDX-License-Identifier: Apache-2.0
"""The directory of a machine's checkpoint: who may write there, and how a file is replaced.

Whoever can write the file decides what a scheduler believes until its first sweep. So the
directory and the file are the service's own, and nobody else's to write; the file is
nobody else's to read, for it holds names of servers and projects. All is opened by names
within the one directory, and no link is followed.

A file is written beside the old one, made durable, and renamed over it: whenever the
writer is killed, or the machine, what stands under the name is the old one or the new one,
whole. It is read, not mapped: a mapped file that somebody cuts short ends the process that
looks at it.

It is made durable as it grows: one call for hundreds of megabytes would stop all of a
process that runs on eventlet, as schedulers of Nova 31 and 32 do, for as long as it takes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

NAME = "host-states.checkpoint"
_TEMPORARY = f".{NAME}.new"
_LOCK = f"{NAME}.lock"

#: What a writer does, in order; tests end its process at each.
STEPS = ("begun", "written", "synced", "renamed")
BEGUN, WRITTEN, SYNCED, RENAMED = STEPS

#: Made durable at once: some ten ms of a disk's time.
_SYNCED_BYTES = 4 << 20

_FILE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Unsafe(Exception):
    """It is another user's, or others may read or write it; says which and what to do."""


class CheckpointDirectory:
    """An open directory that is the service's own; one thread uses it at a time.

    :param make: make it where it is missing
    :raises Unsafe: others may write there
    :raises OSError: it cannot be used
    """

    def __init__(self, path: str, *, make: bool = False) -> None:
        self.path = pathlib.Path(path)
        if make:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: int | None = None
        try:
            refuse_shared_directory(self.path, os.fstat(self._descriptor))
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> CheckpointDirectory:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory, and of the lock; idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def lock(self) -> bool:
        """Take the right to write until :meth:`close`; False while another has it.

        The kernel gives it back however the process ends.

        :raises OSError: the lock cannot be made
        """
        if self._lock is not None:
            return True
        opened = self._open(_LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        self._lock = opened
        return True

    def free_bytes(self) -> int:
        """Return how much the service may still write to the disk."""
        told = os.fstatvfs(self._descriptor)
        return told.f_bavail * told.f_frsize

    @contextlib.contextmanager
    def replacing(
        self,
        while_it_stands: Callable[[], contextlib.AbstractContextManager[None]],
        on_step: Callable[[str], None],
    ) -> Iterator[Callable[[bytes], None]]:
        """Give what writes the new file, which takes the old one's place at the end.

        The lock is to be held. If the block raises, the old file stays.

        :param while_it_stands: makes what is entered around the renaming; if it raises, the
            old file stays
        :raises OSError: it cannot be written, or another process writes here as well
        """
        with contextlib.suppress(FileNotFoundError):
            # A writer that was killed left it.
            os.unlink(_TEMPORARY, dir_fd=self._descriptor)
        opened = self._open(_TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            on_step(BEGUN)
            with os.fdopen(opened, "wb", buffering=1 << 20) as file:
                yield _Growing(file).write
                file.flush()
                on_step(WRITTEN)
                os.fsync(file.fileno())
                written = os.fstat(file.fileno())
            on_step(SYNCED)
            with while_it_stands():
                self._rename(written)
            on_step(RENAMED)
            os.fsync(self._descriptor)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(_TEMPORARY, dir_fd=self._descriptor)

    def _rename(self, written: os.stat_result) -> None:
        told = os.stat(_TEMPORARY, dir_fd=self._descriptor, follow_symlinks=False)
        if not os.path.samestat(told, written):
            # Who removed the lock let two of them in.
            raise OSError(errno.ESTALE, "another process writes here as well", _TEMPORARY)
        os.rename(_TEMPORARY, NAME, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def discard(self) -> None:
        """Remove the file, if there is one.

        :raises OSError: it cannot be removed
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(NAME, dir_fd=self._descriptor)
            os.fsync(self._descriptor)

    def open(self) -> CheckpointFile:
        """Open the file.

        :raises FileNotFoundError: there is none
        :raises Unsafe: it is not the service's own
        :raises OSError: it cannot be read
        """
        try:
            opened = self._open(NAME, os.O_RDONLY)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unsafe(f"{self.path / NAME} is a link: remove it") from error
            raise
        told = os.fstat(opened)
        try:
            _refuse_foreign_file(self.path / NAME, told)
        except BaseException:
            os.close(opened)
            raise
        return CheckpointFile(opened, told.st_size)

    def stat(self) -> os.stat_result | None:
        """Return what is known of the file; None where there is none.

        :raises OSError: it cannot be asked
        """
        try:
            return os.stat(NAME, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | _FILE_FLAGS, 0o600, dir_fd=self._descriptor)


class _Growing:
    """A new file, made durable as it grows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unsynced_bytes = 0

    def write(self, data: bytes) -> None:
        """Write all of it."""
        self._file.write(data)
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= _SYNCED_BYTES:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._unsynced_bytes = 0


class CheckpointFile:
    """An open file; what is renamed over it meanwhile is another one."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = size_bytes

    def read(self, at: int, length: int) -> bytes:
        """Return as many bytes of a place as there are.

        :raises OSError: they cannot be read
        """
        found = b""
        while len(found) < length:
            part = os.pread(self._descriptor, length - len(found), at + len(found))
            if not part:
                break
            found = found + part if found else part
        return found

    def close(self) -> None:
        """Close it; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def refuse_shared_directory(path: pathlib.Path, told: os.stat_result) -> None:
    """Refuse a directory in which others may replace a file.

    :raises Unsafe: they may
    """
    if told.st_uid != os.geteuid():
        raise Unsafe(f"{path} is of user {told.st_uid}, and not of {os.geteuid()}: give it away")
    if told.st_mode & 0o022:
        raise Unsafe(f"others may write to {path}: take that away (chmod 0700)")


def _refuse_foreign_file(path: pathlib.Path, told: os.stat_result) -> None:
    if not stat.S_ISREG(told.st_mode):
        raise Unsafe(f"{path} is no file: remove it")
    if told.st_uid != os.geteuid():
        raise Unsafe(f"{path} is of user {told.st_uid}, and not of {os.geteuid()}: remove it")
    if told.st_mode & 0o077:
        raise Unsafe(f"others may read or write {path}: remove it")
    if told.st_nlink > 1:
        # One that was replaced meanwhile has none.
        raise Unsafe(f"{path} has another name somewhere: remove it")
