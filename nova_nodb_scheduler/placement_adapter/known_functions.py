# SPDX-License-Identifier: Apache-2.0
"""What of Placement is replaced or relied upon, by fingerprints of the sources that are known.

The guard stands in the places of some functions and calls others. A release
that has changed one of them may mean something else by it: then nothing is
replaced, and the process does not start.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType

from nova_nodb_scheduler import errors

#: Releases of Placement whose sources gave the fingerprints.
SUPPORTED = range(13, 17)

#: By module and name: the fingerprints of the definitions that are known. None among them where
#: a release is known that has no such definition.
KNOWN: Mapping[str, Mapping[str, frozenset[str | None]]] = {
    "placement.db.sqlalchemy.models": {
        "Allocation": frozenset({"be415dfed53b4f62"}),
        "Consumer": frozenset({"60d18c10c8c15709"}),
        "Project": frozenset({"8d21671af34fa919"}),
        "ResourceProvider": frozenset({"459f75f31300e0c9"}),
        "User": frozenset({"6c80adb2227497e8"}),
    },
    "placement.handlers.allocation": {
        "_new_allocations": frozenset({"33c9e96422d18493"}),
        "_resource_providers_by_uuid": frozenset({"ea186cab8fd20675"}),
        "_set_allocations_for_consumer": frozenset({"eae82e2edc2643a6"}),
        "create_allocation_list": frozenset({"325e1628c5f49014"}),
        "delete_consumers": frozenset({"8ad4fb0f70df9940"}),
        "inspect_consumers": frozenset({"81b7cc118078c7e6"}),
        "set_allocations": frozenset({"aa1d6f73c84a5bea"}),
    },
    "placement.handlers.reshaper": {
        "reshape": frozenset({"7c37435504c02ae4"}),
    },
    "placement.handlers.util": {
        "_create_consumer": frozenset({"c162fe18ff8ec2c4"}),
        "_get_or_create_project": frozenset({"e4cf6b873c018916"}),
        "_get_or_create_user": frozenset({"bf1b0955c0ef0c1a"}),
        "ensure_consumer": frozenset({"5e16e2944626db76"}),
        "get_or_create_consumer_type_id": frozenset({"9887da56f12ff8c1"}),
        "update_consumers": frozenset({"5b773345b6811d39"}),
    },
    "placement.objects.allocation": {
        "Allocation": frozenset({"49c6fef5744f7ce2"}),
        "_check_capacity_exceeded": frozenset({"b950b790790dbf48", "02338fbcef726600"}),
        "_delete_allocations_by_ids": frozenset({"9e31eb54fb906a91"}),
        "_delete_allocations_for_consumer": frozenset({"b37d23c2fe6e33fc"}),
        "_get_allocations_by_consumer_uuid": frozenset({"f5d047afb4f839e8"}),
        "_provider_usage_query": frozenset({None, "ffa2f2cf0b6036cb"}),
        "_provider_usage_summary": frozenset({None, "8f31b9883c4276eb"}),
        "_set_allocations": frozenset({"4f729aa82c1aeaf1", "a6e5b893f6a32a81"}),
        "get_all_by_consumer_id": frozenset({"0223da9a559b68cd"}),
        "replace_all": frozenset({"6cb7cd0d67ee5507"}),
    },
    "placement.objects.consumer": {
        "Consumer": frozenset({"a60268026d7edbd0"}),
        "_get_consumer_by_uuid": frozenset({"d92249d24572aa61"}),
        "delete_consumers_if_no_allocations": frozenset({"85b1cd406cdb3952"}),
    },
    "placement.objects.project": {
        "Project": frozenset({"4b32e7133fdbaee0"}),
        "_get_project_by_external_id": frozenset({"2782ebf6b01ddba2"}),
    },
    "placement.objects.reshaper": {
        "reshape": frozenset({"24fed558441949eb"}),
    },
    "placement.objects.resource_provider": {
        "_get_provider_by_uuid": frozenset({"7e8ad805ecd4008f"}),
        "_set_inventory": frozenset({"411c504895d759db"}),
    },
    "placement.objects.user": {
        "User": frozenset({"2135749e1ae3790b"}),
        "_get_user_by_external_id": frozenset({"b36bc5f4b1a71d79"}),
    },
    "placement.util": {
        "extract_json": frozenset({"934e39e34192d2fb"}),
    },
}


def check() -> None:
    """See that all that is replaced or relied upon is known.

    :raises UnsupportedPlacement: names what is not
    """
    for module_name, definitions in KNOWN.items():
        module = importlib.import_module(module_name)
        source = inspect.getsource(module)
        for name, known in definitions.items():
            if fingerprint(source, name) not in known:
                raise errors.UnsupportedPlacement(
                    release(), f"{module_name}.{name}", f"{SUPPORTED.start} to {SUPPORTED.stop - 1}"
                )


def release() -> str:
    """Return the version of the installed Placement, ``unknown`` where there is none."""
    try:
        return metadata.version("openstack-placement")
    except metadata.PackageNotFoundError:
        return "unknown"


def fingerprint(source: str, name: str) -> str | None:
    """Return the fingerprint of a module's definitions of a name, decorators included.

    Blanks at the ends of lines, comments and all else within count. None where
    there is no such definition.
    """
    lines = source.splitlines()
    parts = [
        line.rstrip()
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        for line in lines[
            min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1 : node.end_lineno
        ]
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else None


def fingerprints(modules: Mapping[str, ModuleType]) -> dict[str, dict[str, str | None]]:
    """Return those of the installed release, for who adds one to :data:`KNOWN`."""
    return {
        module: {
            name: fingerprint(inspect.getsource(modules[module]), name) for name in definitions
        }
        for module, definitions in KNOWN.items()
    }
