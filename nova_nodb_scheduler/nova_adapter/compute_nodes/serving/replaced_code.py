# SPDX-License-Identifier: Apache-2.0
"""What of Nova's is replaced where reads of compute nodes are served, and is it what we know.

The replacements were written against these functions, and against what they call. One
that differs, by a patch of a distribution or by another plugin, may mean something else:
then nothing is replaced, and the function is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova.db.main import api as main_db
from nova.db.main import models
from nova.objects import compute_node as nova_compute_node

from nova_nodb_scheduler import code_fingerprints, errors


class UnknownCode(errors.NodbError):
    """Functions of Nova that are to be replaced are not those of a known release.

    :param names: of the functions, comma separated
    """

    def __init__(self, names: str) -> None:
        super().__init__(names)
        self.names = names

    def __str__(self) -> str:
        return (
            f"The code of {self.names} is not that of Nova 31.3, 32.1 or later up to 34, as "
            "released: what takes its place might do something else. Upgrade Nova to one of these "
            "(31.0 to 31.2 and 32.0 delete services otherwise), remove the patch or the plugin "
            "that changed it, or set [nodb_scheduler] compute_nodes = mirror."
        )


#: Names of nova.db.main.api that are replaced, or that those rely on.
_API = (
    "Constraint",
    "EqualityCondition",
    "InequalityCondition",
    "_compute_node_create",
    "_compute_node_fetchall",
    "_compute_node_get_and_update_deleted",
    "_compute_node_select",
    "compute_node_create",
    "compute_node_delete",
    "compute_node_get",
    "compute_node_get_all",
    "compute_node_get_all_by_host",
    "compute_node_get_all_by_pagination",
    "compute_node_get_all_mapped_less_than",
    "compute_node_get_by_host_and_nodename",
    "compute_node_get_by_nodename",
    "compute_node_get_model",
    "compute_node_search_by_hypervisor",
    "compute_node_statistics",
    "compute_node_update",
    "compute_nodes_get_by_service_id",
    "convert_objects_related_datetimes",
    "model_query",
    "service_destroy",
    "service_get_all_computes_by_hv_type",
)


def looked_at() -> dict[str, Any]:
    """Return what is compared, by its name for people."""
    node_list = nova_compute_node.ComputeNodeList
    return {
        **{f"nova.db.main.api.{name}": getattr(main_db, name) for name in _API},
        "nova.db.main.models.ComputeNode": models.ComputeNode,
        **{
            f"nova.objects.compute_node.{name}": code
            for name, code in {
                "ComputeNodeList._db_compute_node_get_all_by_uuids": (
                    node_list._db_compute_node_get_all_by_uuids
                ),
                "ComputeNodeList._db_compute_node_get_by_hv_type": (
                    node_list._db_compute_node_get_by_hv_type
                ),
                "_get_node_empty_ratio": nova_compute_node._get_node_empty_ratio,
            }.items()
        },
    }


def check(known: Mapping[str, frozenset[str]] | None = None) -> None:
    """Refuse to replace what is not known.

    :raises UnknownCode: naming it
    """
    accepted = KNOWN if known is None else known
    unknown = sorted(
        name
        for name, code in looked_at().items()
        if code_fingerprints.of_code(code) not in accepted.get(name, frozenset())
    )
    if unknown:
        raise UnknownCode(", ".join(unknown))


#: By name: the fingerprints of Nova 31 to 34, by ``tools/code_fingerprints.py``. Those of
#: service_destroy up to 31.2 and of 32.0, which left nodes mapped, are not among them.
KNOWN: Mapping[str, frozenset[str]] = {
    "nova.db.main.api.Constraint": frozenset(["39ea7219752f7800"]),
    "nova.db.main.api.EqualityCondition": frozenset(["703dca2009db995e"]),
    "nova.db.main.api.InequalityCondition": frozenset(["a32f09eb20699fd3"]),
    "nova.db.main.api._compute_node_create": frozenset(["219471d99f6970c3"]),
    "nova.db.main.api._compute_node_fetchall": frozenset(["96e4127edcb48184"]),
    "nova.db.main.api._compute_node_get_and_update_deleted": frozenset(["3ebeba368a4f6869"]),
    "nova.db.main.api._compute_node_select": frozenset(["02f64ca50a59c1c3"]),
    "nova.db.main.api.compute_node_create": frozenset(["60850d46de22c269"]),
    "nova.db.main.api.compute_node_delete": frozenset(["9466e4a4b3d1ae13"]),
    "nova.db.main.api.compute_node_get": frozenset(["66c0f2d5f14bf1ff"]),
    "nova.db.main.api.compute_node_get_all": frozenset(["33955fe5b5907059"]),
    "nova.db.main.api.compute_node_get_all_by_host": frozenset(["507f8bd2c9c3e429"]),
    "nova.db.main.api.compute_node_get_all_by_pagination": frozenset(["6897162bfbccac85"]),
    "nova.db.main.api.compute_node_get_all_mapped_less_than": frozenset(["663a870dd411f7d0"]),
    "nova.db.main.api.compute_node_get_by_host_and_nodename": frozenset(["d034a292ba8b8d82"]),
    "nova.db.main.api.compute_node_get_by_nodename": frozenset(["426e19777f281fe1"]),
    "nova.db.main.api.compute_node_get_model": frozenset(["982378e3f2339ae7"]),
    "nova.db.main.api.compute_node_search_by_hypervisor": frozenset(["75b840901894a422"]),
    "nova.db.main.api.compute_node_statistics": frozenset(["6ad2820e745b4acc", "6dc0b5d3527737dc"]),
    "nova.db.main.api.compute_node_update": frozenset(["c1a761c4dfa13439"]),
    "nova.db.main.api.compute_nodes_get_by_service_id": frozenset(["fe5abb9296d929bc"]),
    "nova.db.main.api.convert_objects_related_datetimes": frozenset(["e053f2c460b72d14"]),
    "nova.db.main.api.model_query": frozenset(["c34b5861cf94caee"]),
    "nova.db.main.api.service_destroy": frozenset(["75db7b6a09ed430e"]),
    "nova.db.main.api.service_get_all_computes_by_hv_type": frozenset(["471a7d623a34694f"]),
    "nova.db.main.models.ComputeNode": frozenset(["bfe11699164e9af7"]),
    "nova.objects.compute_node.ComputeNodeList._db_compute_node_get_all_by_uuids": frozenset(
        ["dc14aaf3076f4ea5"]
    ),
    "nova.objects.compute_node.ComputeNodeList._db_compute_node_get_by_hv_type": frozenset(
        ["14373d19813c6cf3"]
    ),
    "nova.objects.compute_node._get_node_empty_ratio": frozenset(["a2f463e332a1f6ec"]),
}
