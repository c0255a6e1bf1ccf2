# SPDX-License-Identifier: Apache-2.0
"""Fills the mirror with pages read out of Placement's database, beside keepers and schedulers.

It says nothing in namespace ``mirrors``: the keeper's next sweep compares all
generations with one listing, reads what differs, and declares the mirror
complete. So whatever this left out, or read of a replica that lags, is found
before any scheduler trusts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement import bulk, bulk_rows, tree_publishing
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer import publisher as publisher_module

_TIMES = ("read_at", "whole_at", "written_at")


@attrs.define
class Result:
    """What became of an import.

    :param written: records made or changed
    :param unchanged: records that held the same already
    :param newer: records left as they are, for they hold what was written
        later; the keeper reads these trees if they differ from Placement
    :param broken: trees that cannot be used, with their reason in the record
    :param refused: records that cannot be written; the log tells why
    """

    trees: int = 0
    providers: int = 0
    written: int = 0
    unchanged: int = 0
    newer: int = 0
    broken: int = 0
    refused: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return attrs.asdict(self)


def fill(
    database: bulk.Database,
    synchronizer: contract.Synchronizer,
    publisher: publisher_module.Publisher,
    trees_a_page: int,
    progress: Callable[[int], None] = lambda trees: None,
) -> Result:
    """Read all trees and publish them; may be repeated, and beside live writes.

    :param publisher: of owner ``placement``
    :param progress: told how many trees are done
    :raises PlacementDatabaseError: what was published before stays
    :raises BackendUnavailable: the same
    """
    result = Result()
    began = time.monotonic()
    after = 0
    while True:
        # Before the transaction: what a scheduler wrote later is not in it.
        began_at = synchronizer.now_seconds()
        page = database.page(after, trees_a_page)
        if page is None:
            break
        after = page.last
        _publish(page, began_at, publisher, result, synchronizer.now_seconds)
        progress(result.trees)
    result.seconds = round(time.monotonic() - began, 3)
    return result


def _publish(
    page: bulk_rows.Page,
    began_at: float,
    publisher: publisher_module.Publisher,
    result: Result,
    now_seconds: tree_publishing.NowSeconds,
) -> None:
    newer: set[str] = set()
    report = publisher.publish(
        {
            records.RecordKey(namespaces.PROVIDERS.name, root): _imported(
                root, state, began_at, newer, now_seconds
            )
            for root, state in page.states.items()
        }
    )
    left = newer | {key.key for key in report.failed}
    result.trees += len(page.states)
    result.providers += page.providers
    result.written += report.published
    result.newer += len(left)
    result.refused += len(report.rejected)
    result.unchanged += len(page.states) - report.published - len(left) - len(report.rejected)
    result.broken += sum("broken" in state for state in page.states.values())


def _imported(
    root: str,
    state: Mapping[str, Any],
    began_at: float,
    newer: set[str],
    now_seconds: tree_publishing.NowSeconds,
) -> publisher_module.Compute:
    written = tree_publishing.Written()
    replaced = tree_publishing.replaced(state, began_at, root, written, now_seconds)

    def compute(
        current: publisher_module.State | None,
    ) -> publisher_module.State | publisher_module.Outcome:
        newer.discard(root)
        if current is not None and _same(current, state):
            return publisher_module.UNCHANGED
        wanted = publisher_module.UNCHANGED if _behind(state, current) else replaced(current)
        if wanted is publisher_module.UNCHANGED:
            newer.add(root)
        return wanted

    return compute


def _same(current: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    return {name: value for name, value in current.items() if name not in _TIMES} == state


def _behind(state: Mapping[str, Any], current: Mapping[str, Any] | None) -> bool:
    """Tell whether a record shows a later generation of a provider than was read.

    Or one of an earlier provider of the same uuid: the keeper's sweep tells.
    """
    if current is None:
        return False
    children = state["children"]
    return bool(current["generation"] > state["generation"]) or any(
        child["generation"] > children[uuid]["generation"]
        for uuid, child in current["children"].items()
        if uuid in children
    )
