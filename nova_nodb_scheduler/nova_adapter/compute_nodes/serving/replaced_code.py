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

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import code_fingerprints


class UnknownCode(errors.NodbError):
    """Functions of Nova that are to be replaced are not those of a known release.

    :param names: of the functions, comma separated
    """

    def __init__(self, names: str) -> None:
        super().__init__(names)
        self.names = names

    def __str__(self) -> str:
        return (
            f"The code of {self.names} is not that of Nova 31 to 34 as released: what takes its "
            "place might do something else. Set [nodb_scheduler] compute_nodes = mirror, or "
            "remove the patch or the plugin that changed it."
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
        if code_fingerprints.fingerprint(code) not in accepted.get(name, frozenset())
    )
    if unknown:
        raise UnknownCode(", ".join(unknown))


#: By name: the fingerprints of Nova 31 to 34.
KNOWN: Mapping[str, frozenset[str]] = {
    "nova.db.main.api.Constraint": frozenset(["a50bb77d909c3f98"]),
    "nova.db.main.api.EqualityCondition": frozenset(["30d6cd4ae482f11b"]),
    "nova.db.main.api.InequalityCondition": frozenset(["6cc6de28b895053b"]),
    "nova.db.main.api._compute_node_create": frozenset(["852fe492adb4c258"]),
    "nova.db.main.api._compute_node_fetchall": frozenset(["bac2f4b874a06886"]),
    "nova.db.main.api._compute_node_get_and_update_deleted": frozenset(["074a10e3e82fecf0"]),
    "nova.db.main.api._compute_node_select": frozenset(["31494b9ce087f38a"]),
    "nova.db.main.api.compute_node_create": frozenset(["0017e2f61047b780"]),
    "nova.db.main.api.compute_node_delete": frozenset(["58c48bd7d9c1da6d"]),
    "nova.db.main.api.compute_node_get": frozenset(["ab56a9f2f4db7e3d"]),
    "nova.db.main.api.compute_node_get_all": frozenset(["bfb045c30247d93e"]),
    "nova.db.main.api.compute_node_get_all_by_host": frozenset(["0e70dfe611bc960d"]),
    "nova.db.main.api.compute_node_get_all_by_pagination": frozenset(["350435de42b672f6"]),
    "nova.db.main.api.compute_node_get_all_mapped_less_than": frozenset(["694eb9cb3c62dc60"]),
    "nova.db.main.api.compute_node_get_by_host_and_nodename": frozenset(["e069f9abc14b469c"]),
    "nova.db.main.api.compute_node_get_by_nodename": frozenset(["ef8d30cd41fb61bd"]),
    "nova.db.main.api.compute_node_get_model": frozenset(["ad84ccf07e047847"]),
    "nova.db.main.api.compute_node_search_by_hypervisor": frozenset(["a48b31f36c8d9eb5"]),
    "nova.db.main.api.compute_node_statistics": frozenset(["1d9da67bf657833c", "a1e642003059a66b"]),
    "nova.db.main.api.compute_node_update": frozenset(["2a71d232587a0fb0"]),
    "nova.db.main.api.compute_nodes_get_by_service_id": frozenset(["73e13c6aee9534aa"]),
    "nova.db.main.api.convert_objects_related_datetimes": frozenset(["00e7ed81eda9ef31"]),
    "nova.db.main.api.model_query": frozenset(["291d4e9a7a05e5ac"]),
    "nova.db.main.api.service_destroy": frozenset(["475b3d0b8f0c7cf7"]),
    "nova.db.main.api.service_get_all_computes_by_hv_type": frozenset(["b56c68ded0cd16df"]),
    "nova.db.main.models.ComputeNode": frozenset(["f2a0e810ed73315f"]),
    "nova.objects.compute_node.ComputeNodeList._db_compute_node_get_all_by_uuids": frozenset(
        ["854cff7d5bca03b5"]
    ),
    "nova.objects.compute_node.ComputeNodeList._db_compute_node_get_by_hv_type": frozenset(
        ["761319430b3e48a5"]
    ),
    "nova.objects.compute_node._get_node_empty_ratio": frozenset(["86f90431bd662471"]),
}
