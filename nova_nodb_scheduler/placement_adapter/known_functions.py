# SPDX-License-Identifier: Apache-2.0
"""What of Placement is replaced or relied upon, by fingerprints of the sources that are known.

The guard stands in the places of some functions and calls others. A release
that has changed one of them may mean something else by it: then nothing is
replaced, and the process does not start.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from importlib import metadata

from nova_nodb_scheduler import code_fingerprints, errors

#: Releases of Placement whose sources gave the fingerprints.
SUPPORTED = range(13, 17)

#: By module and name: the fingerprints of the definitions that are known, by
#: ``tools/code_fingerprints.py``. None among them where a release has no such definition.
KNOWN: Mapping[str, Mapping[str, frozenset[str | None]]] = {
    "placement.attribute_cache": {
        "ResourceClassCache": frozenset({"776d19a9ecd805bd"}),
        "_AttributeCache": frozenset({"a17f893efd091c3c"}),
    },
    "placement.db.sqlalchemy.models": {
        "Allocation": frozenset({"b9786354c301ac3a"}),
        "Consumer": frozenset({"1c7ca6d86abfaf1b"}),
        "ConsumerType": frozenset({"8589034321b437ca"}),
        "Inventory": frozenset({"0bcaeff775d49849"}),
        "PlacementAggregate": frozenset({"5527f5decd231d1a"}),
        "Project": frozenset({"54ef8f7f12a50a9e"}),
        "ResourceClass": frozenset({"5a342a3f0e4365bc"}),
        "ResourceProvider": frozenset({"d57087be78ee2eeb"}),
        "ResourceProviderAggregate": frozenset({"040c3a9688943617"}),
        "ResourceProviderTrait": frozenset({"925bce6607adc15e"}),
        "Trait": frozenset({"e2b6df0fbcacd641"}),
        "User": frozenset({"6bad5a54aa16f38a"}),
    },
    "placement.handlers.allocation": {
        "_new_allocations": frozenset({"d1ddb28e65f5f5e4"}),
        "_resource_providers_by_uuid": frozenset({"380fdf78ee6a1e0e"}),
        "_set_allocations_for_consumer": frozenset({"5395e8b1291dc7b8"}),
        "create_allocation_list": frozenset({"83371b3c2583819b"}),
        "delete_consumers": frozenset({"3baaf05aad5f1c3e"}),
        "inspect_consumers": frozenset({"dc50bae3500ef2ff"}),
        "set_allocations": frozenset({"965e66429ef1e422"}),
    },
    "placement.handlers.reshaper": {
        "reshape": frozenset({"d3a3f45f363e0d67"}),
    },
    "placement.handlers.util": {
        "_create_consumer": frozenset({"745f8af2b3958868"}),
        "_get_or_create_project": frozenset({"7c633c8c60df36cb"}),
        "_get_or_create_user": frozenset({"e50a0b94880a4d90"}),
        "ensure_consumer": frozenset({"295b4eab22845284"}),
        "get_or_create_consumer_type_id": frozenset({"7fdc4dedf3663b82"}),
        "update_consumers": frozenset({"105e5c971929cf7e"}),
    },
    "placement.objects.allocation": {
        "Allocation": frozenset({"9dbb11831d490572"}),
        "_check_capacity_exceeded": frozenset({"2bf402c39803d168", "eec533608cb6cca5"}),
        "_delete_allocations_by_ids": frozenset({"4741d118bf6f065d"}),
        "_delete_allocations_for_consumer": frozenset({"8b26de055c052f1b"}),
        "_get_allocations_by_consumer_uuid": frozenset({"1f48d33555f731ac"}),
        "_provider_usage_query": frozenset({None, "0d33a0a0eb26ff48"}),
        "_provider_usage_summary": frozenset({None, "cd599fb760dc88fe"}),
        "_set_allocations": frozenset({"4e6b68e6c52e59b0", "c7e9a9e655860433"}),
        "get_all_by_consumer_id": frozenset({"5cf481488573f1a7"}),
        "replace_all": frozenset({"07a6489666d3bf91"}),
    },
    "placement.objects.consumer": {
        "Consumer": frozenset({"e9f1f80cdf650824"}),
        "_get_consumer_by_uuid": frozenset({"316f2d42cadfbbd1"}),
        "delete_consumers_if_no_allocations": frozenset({"0175b5db061fa98a"}),
    },
    "placement.objects.project": {
        "Project": frozenset({"22f2fc70cafa199e"}),
        "_get_project_by_external_id": frozenset({"2fdb4c12a385ec69"}),
    },
    "placement.objects.reshaper": {
        "reshape": frozenset({"2b90ab6c0cc5f1d3"}),
    },
    "placement.objects.resource_class": {
        "ResourceClass": frozenset({"6be58276e25263ab"}),
        "_resource_classes_sync": frozenset({"c6c39058dc554241"}),
    },
    "placement.objects.resource_provider": {
        "_get_provider_by_uuid": frozenset({"aafed6e70ba8e701"}),
        "_set_inventory": frozenset({"fa36c311bd0270d3"}),
    },
    "placement.objects.user": {
        "User": frozenset({"6bd85ad91a6fdb3d"}),
        "_get_user_by_external_id": frozenset({"79dc2a506490d276"}),
    },
    "placement.util": {
        "_validate_uuid_format": frozenset({"68a9ea54e1c1dadf"}),
        "extract_json": frozenset({"2d5ca7b2ad4a66fa"}),
    },
}


def check() -> None:
    """See that all that is replaced or relied upon is known.

    :raises UnsupportedPlacement: names what is not
    """
    for module_name, definitions in KNOWN.items():
        module = importlib.import_module(module_name)
        found = code_fingerprints.of_definitions(inspect.getsource(module), definitions.keys())
        for name, known in definitions.items():
            if found[name] not in known:
                raise errors.UnsupportedPlacement(
                    release(), f"{module_name}.{name}", f"{SUPPORTED.start} to {SUPPORTED.stop - 1}"
                )


def release() -> str:
    """Return the version of the installed Placement, ``unknown`` where there is none."""
    try:
        return metadata.version("openstack-placement")
    except metadata.PackageNotFoundError:
        return "unknown"
