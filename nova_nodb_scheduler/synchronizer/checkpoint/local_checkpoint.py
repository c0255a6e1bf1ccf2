# SPDX-License-Identifier: Apache-2.0
"""One scheduler's hold on its machine's checkpoint: opened for a start, written, given up.

The thread of the replicator opens and gives up, the writer's thread writes, any thread
asks for the status. A checkpoint that was given up (the back end went back to an older
past) must not come back by a writer that was about to rename: one lock is around both.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import attrs

from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.checkpoint import (
    checkpoint_contract,
    checkpoint_file,
    checkpoint_format,
    code_identity,
    witnesses,
)

LOG = logging.getLogger(__name__)

Refusal = checkpoint_contract.CheckpointRefusal
RefusalReason = checkpoint_contract.CheckpointRefusalReason
WriteOutcome = checkpoint_contract.WriteOutcome


_NO_IDENTITY = (
    "the sources of this release cannot be read, or were replaced since this process began: "
    "restart the service"
)


class TooLarge(Exception):
    """The checkpoint would take more than it may."""


class _GivenUp(Exception):
    """The process ends, or the store was given up."""


class NoDiskRoom(OSError):
    """The disk is nearly full."""


@attrs.define(eq=False)
class OpenedCheckpoint:
    """A checkpoint of this code and driver, open; whether its pages are whole shows as they come.

    :param size_bytes: of the file
    """

    header: checkpoint_contract.Header
    size_bytes: int
    _frames: Iterator[tuple[int, bytes]]
    _file: checkpoint_file.CheckpointFile

    def pages(self) -> Iterator[checkpoint_format.Page]:
        """Yield all pages, once.

        :raises Damaged: it is not what was written; what came before is not to be believed
        :raises OSError: it cannot be read
        """
        reader = checkpoint_format.PageReader()
        for kind, body in self._frames:
            yield reader.page(kind, body)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


class LocalCheckpoint:
    """See the module.

    :param declared: the namespaces of the store
    :param wall_seconds: the machine's clock, since the epoch
    :param on_step: told each of :data:`.checkpoint_file.STEPS`; for tests
    """

    def __init__(
        self,
        options: checkpoint_contract.CheckpointOptions,
        driver: str,
        declared: Sequence[namespaces.Namespace],
        *,
        wall_seconds: Callable[[], float],
        meter: checkpoint_contract.CheckpointMeter = checkpoint_contract.CheckpointMeter(),  # noqa: B008 - it has no state
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.options = options
        self._driver = driver
        self._declared = tuple(declared)
        self._wall_seconds = wall_seconds
        self._meter = meter
        self._on_step = on_step
        self._lock = threading.Lock()
        self._noting = threading.Lock()
        self._writing: checkpoint_file.CheckpointDirectory | None = None
        self._status = checkpoint_contract.CheckpointStatus(None, 0, "", "", "")
        self._identity: checkpoint_contract.CodeIdentity | None = None

    @property
    def status(self) -> checkpoint_contract.CheckpointStatus:
        """What this process knows; no I/O."""
        return self._status

    # -- a start ----------------------------------------------------------------

    def open(self) -> OpenedCheckpoint | Refusal:
        """Open what a start of this code may begin with; never raises for what it finds there."""
        found: checkpoint_file.CheckpointFile | None = None
        try:
            with checkpoint_file.CheckpointDirectory(self.options.directory) as directory:
                found = directory.open()
            opened = self._opened(found)
        except FileNotFoundError:
            opened = Refusal(RefusalReason.ABSENT)
        except checkpoint_file.Unsafe as error:
            opened = Refusal(RefusalReason.UNSAFE, str(error))
        except checkpoint_format.Damaged as error:
            opened = Refusal(RefusalReason.DAMAGED, str(error))
        except OSError as error:
            opened = Refusal(RefusalReason.UNREADABLE, str(error))
        if found is not None and isinstance(opened, Refusal):
            found.close()
        return opened

    def _opened(self, found: checkpoint_file.CheckpointFile) -> OpenedCheckpoint | Refusal:
        if found.size_bytes > self.options.max_bytes:
            return Refusal(RefusalReason.TOO_LARGE, f"{found.size_bytes} bytes")
        frames = checkpoint_format.frames(found.read, found.size_bytes)
        kind, body = next(frames, (checkpoint_format.END, b""))
        if kind != checkpoint_format.HEADER:
            raise checkpoint_format.Damaged("it has no header")
        header = checkpoint_format.header_of(body)
        own = self._own()
        if own is None:
            return Refusal(RefusalReason.OTHER_CODE, _NO_IDENTITY)
        if header.identity.driver != own.driver:
            return Refusal(
                RefusalReason.OTHER_DRIVER, f"{header.identity.driver!r}, and not {own.driver!r}"
            )
        if header.identity != own:
            return Refusal(
                RefusalReason.OTHER_CODE, _difference(header.identity.schemas, own.schemas)
            )
        self._note(made_at_seconds=header.made_at_seconds, size_bytes=found.size_bytes)
        return OpenedCheckpoint(header, found.size_bytes, frames, found)

    def began(self, refusal: Refusal | None) -> None:
        """Note and count how this process began; None where it was with the checkpoint."""
        outcome = checkpoint_contract.RESTORED if refusal is None else refusal.reason.value
        self._meter.checkpoint_start(outcome)
        self._note(start=outcome if refusal is None else str(refusal))

    def _own(self) -> checkpoint_contract.CodeIdentity | None:
        """Return who this process is; told once, before its sources are replaced."""
        if self._identity is None:
            self._identity = code_identity.identify(self._driver, self._declared)
        return self._identity

    # -- giving up --------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """Remove the checkpoint: the back end lacks what is in it."""
        with self._lock:
            try:
                with checkpoint_file.CheckpointDirectory(self.options.directory) as directory:
                    directory.discard()
            except FileNotFoundError:
                return
            except (OSError, checkpoint_file.Unsafe) as error:
                LOG.error(
                    "The checkpoint in %(directory)s is to be removed (%(why)s), and cannot be: "
                    "%(error)s",
                    {"directory": self.options.directory, "why": why, "error": error},
                )
                return
        LOG.warning(
            "Removed the checkpoint in %(directory)s: %(why)s",
            {"directory": self.options.directory, "why": why},
        )

    # -- writing ----------------------------------------------------------------

    def write(
        self,
        moment: Callable[[], checkpoint_contract.FeedMoment | str],
        pause: Callable[[], bool],
    ) -> WriteOutcome:
        """Write a checkpoint, if this process is the one that does; never raises for the disk.

        :param moment: what to write, or why nothing may be written now
        :param pause: called behind each page; False ends the attempt
        """
        outcome, detail = self._attempt(moment, pause)
        self._meter.checkpoint_write(outcome.value)
        # What is not ready becomes so by itself, or the log says elsewhere what is wrong.
        tells = outcome is not WriteOutcome.NOT_READY and detail
        if tells and (outcome.value, detail) != (self._status.outcome, self._status.detail):
            LOG.warning(
                "The checkpoint in %(directory)s is not renewed: %(outcome)s: %(detail)s",
                {
                    "directory": self.options.directory,
                    "outcome": outcome.value,
                    "detail": detail,
                },
            )
        self._note(outcome=outcome.value, detail=detail)
        return outcome

    def failed(self, error: Exception) -> None:
        """Note and count an attempt that ended by what nobody expected; it is logged elsewhere."""
        self._meter.checkpoint_write(WriteOutcome.FAILED.value)
        self._note(outcome=WriteOutcome.FAILED.value, detail=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Let another worker write; idempotent. The writer's thread has ended."""
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    def _attempt(
        self,
        moment: Callable[[], checkpoint_contract.FeedMoment | str],
        pause: Callable[[], bool],
    ) -> tuple[WriteOutcome, str]:
        own = self._own()
        if own is None:
            return WriteOutcome.FAILED, _NO_IDENTITY
        try:
            directory = self._directory()
            if not directory.lock():
                self._look(directory)
                return WriteOutcome.ANOTHER_WRITES, ""
            taken = moment()
            if isinstance(taken, str):
                # Whoever follows its feed may write in our place.
                self.close()
                return WriteOutcome.NOT_READY, taken
            return self._replace(directory, own, taken, pause)
        except _GivenUp:
            return WriteOutcome.NOT_READY, "the scheduler ended, or began to read all anew"
        except TooLarge as error:
            return WriteOutcome.TOO_LARGE, str(error)
        except (OSError, checkpoint_file.Unsafe) as error:
            # Made anew with the next attempt: it may have been replaced, or mended.
            self.close()
            return WriteOutcome.FAILED, str(error)

    def _directory(self) -> checkpoint_file.CheckpointDirectory:
        if self._writing is not None and not self._writing.is_there:
            self.close()
        if self._writing is None:
            self._writing = checkpoint_file.CheckpointDirectory(self.options.directory, make=True)
        return self._writing

    def _replace(
        self,
        directory: checkpoint_file.CheckpointDirectory,
        own: checkpoint_contract.CodeIdentity,
        moment: checkpoint_contract.FeedMoment,
        pause: Callable[[], bool],
    ) -> tuple[WriteOutcome, str]:
        made_at_seconds = self._wall_seconds()

        @contextlib.contextmanager
        def while_it_stands() -> Iterator[None]:
            with self._lock:
                if not moment.stands():
                    raise _GivenUp
                yield

        with directory.replacing(while_it_stands, self._on_step) as write:
            frames = checkpoint_format.FrameWriter(self._bounded(directory, write))
            header = checkpoint_contract.Header(
                own, moment.cursor, made_at_seconds, witnesses.newest(moment)
            )
            frames.frame(checkpoint_format.HEADER, checkpoint_format.header_body(header))
            _write_pages(frames, moment.snapshot, pause)
            frames.end()
        self._note(made_at_seconds=made_at_seconds, size_bytes=frames.size_bytes)
        return WriteOutcome.WRITTEN, ""

    def _bounded(
        self, directory: checkpoint_file.CheckpointDirectory, write: Callable[[bytes], None]
    ) -> Callable[[bytes], None]:
        written = 0

        def bounded(data: bytes) -> None:
            nonlocal written
            written += len(data)
            if written > self.options.max_bytes:
                raise TooLarge(f"it has more than {self.options.max_bytes} bytes")
            if directory.free_bytes() < self.options.least_free_bytes + len(data):
                raise NoDiskRoom(
                    f"less than {self.options.least_free_bytes} bytes would be left on the disk"
                )
            write(data)

        return bounded

    def _look(self, directory: checkpoint_file.CheckpointDirectory) -> None:
        """Learn what another worker wrote."""
        told = directory.stat()
        if told is None:
            self._note(made_at_seconds=None, size_bytes=0)
        else:
            self._note(made_at_seconds=told.st_mtime, size_bytes=told.st_size)

    def _note(self, **changes: object) -> None:
        # Two threads note: one how it began, the other what it wrote.
        with self._noting:
            self._status = attrs.evolve(self._status, **changes)  # type: ignore[arg-type]


def _write_pages(
    frames: checkpoint_format.FrameWriter,
    snapshot: store_snapshot.Snapshot,
    pause: Callable[[], bool],
) -> None:
    """Write all pages.

    :raises _GivenUp: the pause said so
    """
    writer = checkpoint_format.PageWriter()
    for name in snapshot.namespaces():
        for page in snapshot.namespace(name).pages():
            frames.frame(*writer.frame(name, page))
            if not pause():
                raise _GivenUp


def _difference(found: object, own: object) -> str:
    if found != own:
        return "its namespaces, or versions of their schemas, are not those of this release"
    return "it was written by another build of the plugin, or with another max_record_mib"
