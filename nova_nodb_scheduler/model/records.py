# SPDX-License-Identifier: Apache-2.0
"""Records as they stand in a back end, which names they may have, and their way into a store.

A name comes from Nova's tables, and what stands there a compute node may have
chosen. PostgreSQL takes no NUL, etcd's and Redis's layouts need a separator,
memcached's protocol has lines, UTF-8 carries no lone surrogate and a log is
read line by line. What one engine cannot hold is refused with all of them: a
store can then be moved, and no writer meets a name that stops its batch.

A record is named by (namespace, key) and has a revision of its own, so that a
writer of one record never disturbs the writer of another. The back end gives
all accepted writes one order, the version; (epoch, version) is a cursor into
it. A new epoch says that the order began anew (a flushed cache, a restored
backup): nothing of the old epoch can be trusted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs

#: Longest parts, in characters; in UTF-8 each has up to four bytes.
NAMESPACE_CHARACTERS = 64
KEY_CHARACTERS = 255

#: Control characters (Unicode's category Cc) and surrogates (Cs).
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def name_fault(namespace: str, key: str) -> str | None:
    """Say why no record may have a name; None if one may.

    Nothing is normalised: names of other code points are other names, blanks
    at their ends included.
    """
    return _fault("namespace", namespace, NAMESPACE_CHARACTERS) or _fault(
        "key", key, KEY_CHARACTERS
    )


def first_name_fault(namespace: str, keys: Sequence[str]) -> str | None:
    """Say why no record may have one of some names; None if all may.

    Of a page of names it costs much less than to look at each.
    """
    lengths = set(map(len, keys))
    if not lengths or (min(lengths) and max(lengths) <= KEY_CHARACTERS):
        if "".join(keys).isprintable():
            keys = keys[:1]  # the namespace is to be looked at all the same
    return next(filter(None, (name_fault(namespace, key) for key in keys)), None)


def _fault(part: str, text: str, most: int) -> str | None:
    if not text:
        return f"its {part} is empty"
    if len(text) > most:
        return f"its {part} has {len(text)} characters, at most {most} are taken"
    if text.isprintable():  # nearly always; neither a control nor a surrogate is
        return None
    found = _FORBIDDEN.search(text)
    if found is None:
        return None
    kind = "a lone surrogate" if "\ud800" <= found[0] <= "\udfff" else "a control character"
    return f"its {part} holds {kind}, U+{ord(found[0]):04X}"


def printable_name(text: str, most: int = KEY_CHARACTERS) -> str:
    """Return a name for people: of one line, and no longer than names may be."""
    if len(text) > most:
        text = f"{text[:most]}... ({len(text)} characters)"
    return text if text.isprintable() else ascii(text)[1:-1]


class RecordKey(NamedTuple):
    """Name of a record; what may stand in its parts: :mod:`.records`.

    Keys are ordered by namespace, then by key. Any text makes one, so that who
    meets a name that no record may have can say so.

    A tuple, for every request looks keys up by the dozen, and batches are sorted by
    them: it is hashed and compared without a call of ours.
    """

    namespace: str
    key: str

    @property
    def fault(self) -> str | None:
        """Why no record may have this name; None if one may."""
        return name_fault(self.namespace, self.key)

    def __str__(self) -> str:
        return f"{printable_name(self.namespace)}/{printable_name(self.key)}"


@attrs.frozen
class Cursor:
    """A position in the feed of changes: all versions up to it are known.

    :param epoch: opaque; equal text means the same, unbroken order
    :param version: 0 before the first write of the epoch
    """

    epoch: str
    version: int


@attrs.frozen
class Record:
    """One record as a back end holds it.

    :param revision: positive; for one key it only grows within an epoch,
        across deletion and collection of the tombstone too, and comes again in
        no other epoch, so that a remembered revision never matches another
        state of the same key
    :param version: place of the last write to this record in the feed
    :param payload: encoded state (:mod:`nova_nodb_scheduler.wire`), empty for
        a tombstone
    :param deleted: True for a tombstone
    """

    key: RecordKey
    revision: int
    version: int
    payload: bytes
    deleted: bool = False


@attrs.frozen
class Write:
    """A compare-and-set on one record.

    :param expected_revision: the revision the writer read. 0 stands for "no
        live record": it wins where the key is absent or a tombstone.
    :param payload: the new encoded state; ignored for a deletion
    :param deleted: True to leave a tombstone
    """

    key: RecordKey
    expected_revision: int
    payload: bytes = b""
    deleted: bool = False

    def wins(self, standing: Record | None) -> bool:
        """Decide the compare-and-set against what stands there, a tombstone or None included."""
        if self.expected_revision == 0:
            return standing is None or standing.deleted
        return standing is not None and standing.revision == self.expected_revision


class Verdict(enum.Enum):
    """How a compare-and-set ended."""

    WON = "won"
    LOST = "lost"
    #: The request may or may not have been carried out (a time-out after it
    #: was sent). Settle it by reading: the writer knows its own payload.
    UNKNOWN = "unknown"
    #: No record may have this name; it was not sent, and never will be.
    REFUSED = "refused"


@attrs.frozen
class WriteResult:
    """Outcome of one :class:`Write`.

    :param record: won: the record as written; lost: the record that stands
        there, tombstones included, or None where there is none; unknown and
        refused: None
    :param epoch: won: the epoch it was written in, where the driver knows it
        without asking for it; else None
    :param reason: refused: why
    """

    verdict: Verdict
    record: Record | None = None
    epoch: str | None = None
    reason: str = ""

    @property
    def won(self) -> bool:
        return self.verdict is Verdict.WON


@attrs.frozen
class Changes:
    """What a fetch brought: records in order of version, each at its latest.

    :param cursor: where the next fetch begins
    :param more: True if the fetch stopped at its limit and more is waiting
    """

    records: tuple[Record, ...]
    cursor: Cursor
    more: bool = False


class ResyncReason(enum.Enum):
    """Why a cursor cannot be continued."""

    EPOCH_CHANGED = "epoch changed"
    HEAD_BEHIND_CURSOR = "head behind cursor"
    HISTORY_TRUNCATED = "history truncated"
    RECORD_MISSING = "record missing"


@attrs.frozen
class ResyncNeeded:
    """The reader must take a snapshot: the feed cannot bring it up to date."""

    reason: ResyncReason
    detail: str = ""


@attrs.frozen
class Change:
    """A record on its way into a store, already decoded once.

    :param state: decoded payload; None for a tombstone
    :param text: the text in the payload, where whoever decoded it has it at hand
    """

    record: Record
    state: Mapping[str, Any] | None
    text: bytes | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def key(self) -> RecordKey:
        """The record's name."""
        return self.record.key
