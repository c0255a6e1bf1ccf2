# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of itself, why one is not believed, and to whom it is counted."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.store import store_snapshot


class CheckpointRefusalReason(enum.Enum):
    """Why a start reads everything from the back end; values are labels of a metric."""

    ABSENT = "absent"
    #: Its directory or file is another user's, or others may read or write it.
    UNSAFE = "unsafe"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too large"
    DAMAGED = "damaged"
    #: Another format, release, set of namespaces or bound of records.
    OTHER_CODE = "other code"
    OTHER_DRIVER = "other driver"
    OTHER_EPOCH = "other epoch"
    HEAD_BEHIND_CURSOR = "head behind cursor"
    HISTORY_TRUNCATED = "history truncated"
    #: The back end lacks what it held, or holds another state of it.
    LOST_WRITES = "lost writes"
    #: A listener wants each record decoded.
    NOT_TOLD = "not told"
    #: Something else went wrong while it was read.
    INTERRUPTED = "interrupted"


@attrs.frozen
class CheckpointRefusal:
    """A checkpoint that is not begun with."""

    reason: CheckpointRefusalReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


class WriteOutcome(enum.Enum):
    """What became of an attempt to write one; values are labels of a metric."""

    WRITTEN = "written"
    #: Another worker of this machine writes.
    ANOTHER_WRITES = "another writes"
    #: The feed is not followed, or records are kept aside.
    NOT_READY = "not ready"
    TOO_LARGE = "too large"
    #: The directory cannot be used, or the disk is full.
    FAILED = "failed"


@attrs.frozen
class WitnessRecord:
    """A record that was among the newest of its namespace.

    :param text_digest: of the text in its payload
    """

    key: records.RecordKey
    revision: int
    version: int
    text_digest: str


@attrs.frozen
class CodeIdentity:
    """By whom a checkpoint can be read.

    :param driver: name of the synchronizer's driver
    :param code: stands for the release's sources and declarations
    :param schemas: version by namespace
    """

    driver: str
    code: str
    schemas: Mapping[str, str]


@attrs.frozen
class Header:
    """What a checkpoint says of itself.

    :param cursor: all up to there is in it
    :param made_at_seconds: since the epoch, by the clock of the machine; for people
    """

    identity: CodeIdentity
    cursor: records.Cursor
    made_at_seconds: float
    witnesses: Sequence[WitnessRecord]


@attrs.frozen(eq=False)
class FeedMoment:
    """A snapshot of a store that holds all up to a cursor, and what tells whether that stands.

    :param stands: whether the store was not given up since, and its feed is followed
    """

    cursor: records.Cursor
    snapshot: store_snapshot.Snapshot
    stands: Callable[[], bool]


@attrs.frozen(kw_only=True)
class CheckpointOptions:
    """How a checkpoint is written.

    :param directory: where; made if it is not there
    :param interval_seconds: from the end of one to the begin of the next
    :param max_bytes: none larger is written or read
    :param busy_ratio: of a core, at most, while one is written
    :param least_free_bytes: of the disk stay free
    """

    directory: str
    interval_seconds: float = 300.0
    max_bytes: int = 1 << 30
    busy_ratio: float = 0.25
    least_free_bytes: int = 64 << 20


@attrs.frozen
class CheckpointStatus:
    """What a worker knows of its machine's checkpoint.

    :param made_at_seconds: since the epoch; None where there is none, or it cannot be read
    :param outcome: of this worker's last attempt to write; empty before the first
    :param start: how this worker began: ``restored``, or why not; empty before
    """

    made_at_seconds: float | None
    size_bytes: int
    outcome: str
    detail: str
    start: str


class CheckpointMeter:
    """Counts what becomes of checkpoints; measures nothing by itself.

    The methods are called in threads of the scheduler, must not block and must not raise.
    """

    def checkpoint_start(self, outcome: str) -> None:
        """A start began with a checkpoint (``restored``), or did not, for a reason."""

    def checkpoint_write(self, outcome: str) -> None:
        """An attempt to write one ended."""


#: How a start that began with a checkpoint is counted.
RESTORED = "restored"
