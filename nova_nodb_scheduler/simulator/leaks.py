# SPDX-License-Identifier: Apache-2.0
"""Counts claims that outlived their servers."""

from __future__ import annotations

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.simulator import ledger as ledger_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec


def count(synchronizer: contract.Synchronizer, ledger: ledger_module.Ledger) -> int:
    """Return claims of servers that do not stand on the host claimed; -1: not known."""
    try:
        pages = synchronizer.snapshot([namespaces.CLAIM_RECORDS.name]).pages
        found = [
            (consumer, record.key.key)
            for page in pages
            for record in page
            for consumer in codec.decode_state(record.payload).get("claims", {})
        ]
    except (errors.BackendUnavailable, contract.SnapshotInterrupted):
        return -1
    standing = ledger.standing
    return sum(standing.get(consumer) != host_uuid for consumer, host_uuid in found)
