# SPDX-License-Identifier: Apache-2.0
"""What each project has of the cloud, from the columns of the servers that stand on hosts.

Of a server's record its flavor's size is known, so that shares are told by processors,
memory and disk. Servers that hold no room count for nobody: those that were never
placed, and those that are shelved and off their host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.store import store_snapshot

#: Resource classes, each with the columns that it is the sum of.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "VCPU": ("vcpus",),
    "MEMORY_MB": ("memory_mb",),
    "DISK_GB": ("root_gb", "ephemeral_gb"),
}
RESOURCES = tuple(_COLUMNS)

#: States of servers that are on no host, whatever host they name.
_WITHOUT_ROOM = frozenset(("shelved_offloaded", "deleted", "soft-delete"))


def of_instances(view: store_snapshot.NamespaceView) -> dict[str, dict[str, int]]:
    """Return amounts by resource class and project id, of the records of ``instances``.

    One pass over the columns; projects that have nothing are left out.
    """
    projects = view.column("project_id")
    counted = _has_room(view)
    codes: npt.NDArray[np.intp] = projects[counted].astype(np.intp)
    texts = view.vocabulary("project_id")
    sums: dict[str, list[int]] = {}
    for name, columns in _COLUMNS.items():
        amounts = sum(view.column(each)[counted].astype(np.float64) for each in columns)
        # Exact: below 2**53 of anything.
        sums[name] = np.bincount(codes, weights=amounts).astype(np.int64).tolist()
    return {
        texts.text(code): {name: amounts[code] for name, amounts in sums.items() if amounts[code]}
        for code in np.unique(codes).tolist()
    }


def _has_room(view: store_snapshot.NamespaceView) -> npt.NDArray[np.bool_]:
    states, hosts = view.vocabulary("vm_state"), view.vocabulary("host")
    counted = ~_among(view.column("vm_state"), _codes(states.texts(), _WITHOUT_ROOM))
    counted &= ~_among(view.column("host"), _codes(hosts.texts(), ("",)))
    return counted


def _codes(texts: Iterable[str], wanted: Iterable[str]) -> list[int]:
    known = frozenset(wanted)
    return [code for code, text in enumerate(texts) if text in known]


def _among(codes: npt.NDArray[np.int32], wanted: list[int]) -> npt.NDArray[np.bool_]:
    return np.isin(codes, wanted)
