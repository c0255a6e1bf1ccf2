# SPDX-License-Identifier: Apache-2.0
"""Whether a back end still has what a checkpoint holds: a few records are read again.

A back end that was put back to an older past, while nobody was there to see it, says that
it is the same epoch; once others have written again, its head is behind no cursor, and
the feed says nothing. A reader that slept would find out with its first sweep. One that
begins with a checkpoint asks first: what was written last in each namespace is what such
a back end lacks. Each of these records must stand as it did, or have been written since.

The best of them is the heartbeat of the process that wrote the checkpoint: it was sent some
seconds before, under a name that no other process has, so that a past from before it has
another one or none. What was lost in those seconds alone may be overlooked, until the
sweep behind a start has compared all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract
from nova_nodb_scheduler.wire import codec

#: Of each namespace.
_MOST = 64


def newest(moment: checkpoint_contract.FeedMoment) -> list[checkpoint_contract.WitnessRecord]:
    """Return the witnesses of a snapshot.

    Those behind the cursor as well: a batch that was being taken is in the snapshot, and the
    feed, which brings it again, does not bring what the back end lost of it.
    """
    found = []
    for name in moment.snapshot.namespaces():
        for stored in moment.snapshot.namespace(name).newest(_MOST):
            found.append(
                checkpoint_contract.WitnessRecord(
                    records.RecordKey(name, stored.key),
                    stored.revision,
                    stored.version,
                    _digest_of(stored.payload),
                )
            )
    return found


def contradiction(
    synchronizer: contract.Synchronizer,
    cursor: records.Cursor,
    asked: Sequence[checkpoint_contract.WitnessRecord],
) -> str | None:
    """Return what a back end holds otherwise than it did; None where it agrees.

    :param cursor: of the checkpoint; the back end is in its epoch
    :raises BackendUnavailable: it does not answer
    """
    found = synchronizer.read([each.key for each in asked]) if asked else {}
    return next(filter(None, (_fault(cursor, each, found) for each in asked)), None)


def _fault(
    cursor: records.Cursor,
    witness: checkpoint_contract.WitnessRecord,
    found: Mapping[records.RecordKey, records.Record],
) -> str | None:
    record = found.get(witness.key)
    if record is None:
        return f"{witness.key} is gone without a trace"
    if record.version > cursor.version and record.revision > witness.revision:
        return None
    if (record.revision, record.version) != (witness.revision, witness.version):
        return (
            f"{witness.key} has revision {record.revision} at version {record.version}, and had "
            f"{witness.revision} at {witness.version}"
        )
    if record.deleted or _digest_of(record.payload) != witness.text_digest:
        return f"{witness.key} has another content at revision {record.revision}"
    return None


def _digest_of(payload: bytes) -> str:
    """Return what stands for a payload's text, by whatever zlib it was compressed."""
    try:
        text = codec.text_of(payload) if payload else b""
    except errors.UndecodableRecord:
        text = payload
    return hashlib.blake2b(text, digest_size=16).hexdigest()
