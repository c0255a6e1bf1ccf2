# SPDX-License-Identifier: Apache-2.0
"""Parts of etcd transactions in the gateway's JSON, and what their answers hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.synchronizer.drivers.etcd import layout

Operation = dict[str, Any]


def unchanged(key: bytes, revision: int) -> Operation:
    """Compare: the key's last change had this revision (0: there is no key)."""
    return {
        "key": layout.encode(key),
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": str(revision),
    }


def put(key: bytes, value: bytes) -> Operation:
    """Return the operation that sets a key."""
    return {"request_put": {"key": layout.encode(key), "value": layout.encode(value)}}


def delete(key: bytes, end: bytes | None = None) -> Operation:
    """Return the operation that deletes a key, or all from it up to an end."""
    request = {"key": layout.encode(key)}
    if end is not None:
        request["range_end"] = layout.encode(end)
    return {"request_delete_range": request}


def get(key: bytes) -> Operation:
    """Return the operation that reads a key."""
    return {"request_range": {"key": layout.encode(key)}}


def get_at(key: bytes, revision: int) -> Operation:
    """Return the operation that reads a key as it stood at a revision.

    Where that is compacted, or to come yet, nothing of its transaction is done.
    """
    return {"request_range": {"key": layout.encode(key), "revision": str(revision)}}


def get_range(key: bytes, end: bytes, **options: Any) -> Operation:
    """Range; options as in etcd's RangeRequest."""
    return {
        "request_range": {"key": layout.encode(key), "range_end": layout.encode(end), **options}
    }


def transaction(
    compare: Sequence[Operation],
    success: Sequence[Operation],
    failure: Sequence[Operation] = (),
) -> Operation:
    """Return a transaction: some operations where all comparisons hold, others where not."""
    return {"compare": list(compare), "success": list(success), "failure": list(failure)}


def nested(
    compare: Sequence[Operation],
    success: Sequence[Operation],
    failure: Sequence[Operation] = (),
) -> Operation:
    """Return a transaction as one operation of another, which succeeds by itself."""
    return {"request_txn": transaction(compare, success, failure)}


def succeeded(reply: Mapping[str, Any]) -> bool:
    """Say whether all comparisons of a transaction held."""
    return bool(reply.get("succeeded", False))


def revision(reply: Mapping[str, Any]) -> int:
    """Return the store's revision after a transaction: its own, where it wrote."""
    return int(reply["header"].get("revision", 0))


def inner(reply: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    """Return the answer of a nested transaction."""
    answer: Mapping[str, Any] = reply["responses"][place]["response_txn"]
    return answer


def held(reply: Mapping[str, Any], place: int) -> list[layout.KeyValue]:
    """Return what one range of a transaction found."""
    return list(reply["responses"][place]["response_range"].get("kvs", ()))


def first(reply: Mapping[str, Any], place: int) -> layout.KeyValue | None:
    """Return the key that one range of a transaction found, or None."""
    found = held(reply, place)
    return found[0] if found else None


def last(reply: Mapping[str, Any]) -> layout.KeyValue | None:
    """Return the key that the last range of a transaction found, or None."""
    return first(reply, len(reply["responses"]) - 1)


def count(reply: Mapping[str, Any], place: int) -> int:
    """Return how many keys one range of a transaction covers."""
    return int(reply["responses"][place]["response_range"].get("count", 0))
