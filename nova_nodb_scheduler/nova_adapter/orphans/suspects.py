# SPDX-License-Identifier: Apache-2.0
"""Claims that may have left an allocation behind, as one snapshot shows them; no I/O.

Who dies between the write of an allocation and its answer leaves one of two:

* a pending claim, whose lease ends: its host's record remembers it as *lapsed*;
* a confirmed claim, which nothing ends while its allocation stands.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.nova_adapter import tables
from nova_nodb_scheduler.nova_adapter.orphans import presence
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module


@attrs.frozen
class Suspect:
    """A claim that tells who wrote a consumer's allocation on a host.

    :param host: uuid of the node
    :param lapsed: its lease ended; else it is confirmed
    """

    consumer: str
    host: str
    held: model.HeldClaim
    lapsed: bool


def find(snapshot: snapshot_module.Snapshot) -> dict[str, list[Suspect]]:
    """Return the suspects by consumer; none of those who are at work still.

    Of a confirmed claim whose server or migration is known none is suspected.
    """
    found: dict[str, list[Suspect]] = {}
    at_work: set[str] = set()
    for record in _records(snapshot):
        for consumer, held in record.claims.items():
            if held.state is model.ClaimState.PENDING:
                # Its lease runs, or its end is to be noted still.
                at_work.add(consumer)
            elif not is_known(snapshot, consumer):
                found.setdefault(consumer, []).append(Suspect(consumer, record.host, held, False))
        for consumer, held in record.lapsed.items():
            found.setdefault(consumer, []).append(Suspect(consumer, record.host, held, True))
    return {name: suspects for name, suspects in found.items() if name not in at_work}


def _records(snapshot: snapshot_module.Snapshot) -> Iterator[model.ClaimRecord]:
    view = snapshot.namespace(namespaces.CLAIM_RECORDS.name)
    for host in view.keys():  # noqa: SIM118 - a view is no mapping
        record = view.digest(host)
        if record is not None and not isinstance(record, errors.InvalidRecord):
            yield record


def is_known(snapshot: snapshot_module.Snapshot, consumer: str) -> bool:
    """Say whether states in memory have a server of that uuid, or a migration.

    One in cell0 is no server of any host.
    """
    migrations = snapshot.namespace(namespaces.MIGRATIONS.name)
    return bool(migrations.lookup("instance", consumer)) or any(
        tables.cell_key(consumer, cell) in view
        for view in (snapshot.namespace(namespaces.INSTANCES.name), migrations)
        for cell in view.vocabulary("cell").texts()
        if cell != presence.CELL0
    )


def cells_of_hosts(snapshot: snapshot_module.Snapshot) -> frozenset[str]:
    """Return the cells that hosts in memory belong to."""
    view = snapshot.namespace(namespaces.COMPUTE_NODES.name)
    if not len(view):
        return frozenset()
    vocabulary = view.vocabulary("cell")
    return frozenset(vocabulary.text(code) for code in np.unique(view.column("cell")).tolist())
