# SPDX-License-Identifier: Apache-2.0
"""Forgets lapsed claims that nothing can come of any more, by compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claims, contract, latest_records
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


def forget(
    synchronizer: contract.Synchronizer,
    latest: latest_records.LatestRecords,
    ids_by_host: Mapping[str, Mapping[str, str]],
) -> int:
    """Drop what hosts' records remember of some claims; return of how many hosts.

    Who loses against another write leaves it: a second call does the rest. Blocks for
    a read and a write.

    :param latest: where who claims here finds what was written
    :param ids_by_host: claim ids by consumer
    :raises BackendUnavailable: nobody knows what was dropped
    """
    if not ids_by_host:
        return 0
    epoch = latest.epoch
    found = synchronizer.read([claims.key_of(host) for host in ids_by_host])
    writes = []
    for host, ids in ids_by_host.items():
        record = found.get(claims.key_of(host))
        if record is None or record.deleted:
            continue
        try:
            decoded = codec.decode(record.payload)
            codec.check_readable(decoded.schema, namespaces.CLAIM_RECORDS)
        except errors.UndecodableRecord as error:
            LOG.warning("Claims of %(host)s: %(error)s", {"host": host, "error": error})
            continue
        state: Any = decoded.state
        read = model.ClaimRecord.from_state(host, state, record.version)
        left = read.without_lapsed(ids)
        if left is not read:
            schema = namespaces.CLAIM_RECORDS.schema
            payload = codec.encode(left.to_state(), schema, record=str(record.key))
            writes.append(records.Write(record.key, record.revision, payload))
    results = synchronizer.write(writes) if writes else ()
    for result in results:
        latest.note(result.record, result.epoch or epoch)
    return sum(result.won for result in results)
