# SPDX-License-Identifier: Apache-2.0
"""A compute node's record as facts and attributes, as Nova's HostState would hold them.

A compute node's record as facts and attributes, as Nova's HostState would hold them.

What is said of Nova is ``HostState._update_from_compute_node`` and
``ComputeNode._from_db_object``.

A compute node's facts as a store keeps them: a row of bytes.

By the hundred thousand, objects of facts take five times as much, and a frame
of hosts is filled from such rows without making one.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import attrs
import immutables
import numpy as np
import orjson

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts, host_topology
from nova_nodb_scheduler.scheduling.namespaces import record_fields

#: Major version of Nova's ComputeNode object that is understood.
_OBJECT_MAJOR = "1"

#: Metrics that Nova keeps as hundredths in JSON and as percents in objects.
_PERCENTAGES = frozenset(
    f"cpu.{name}percent" for name in ("user.", "kernel.", "idle.", "iowait.", "")
)

#: Columns of the row that are attributes of the HostState, of the same name.
_VERBATIM = frozenset(
    (
        "uuid",
        "cpu_info",
        "host_ip",
        "hypervisor_type",
        "hypervisor_hostname",
        "hypervisor_version",
    )
)

#: Columns that hold a number in every row.
_NUMBERS = (
    "vcpus",
    "vcpus_used",
    "memory_mb",
    "memory_mb_used",
    "local_gb",
    "local_gb_used",
    "hypervisor_version",
)

_NOTHING: immutables.Map[str, Any] = immutables.Map()


@attrs.frozen
class DefaultRatios:
    """What stands for an allocation ratio that a compute node's row lacks.

    Nova takes ``*_allocation_ratio`` of the scheduler's own configuration, or
    ``initial_*_allocation_ratio`` where that is unset.
    """

    cpu: float = 4.0
    ram: float = 1.0
    disk: float = 1.0


def digest(key: str, state: Mapping[str, Any]) -> host_facts.HostFacts | errors.InvalidRecord:
    """Return a compute node's facts, or what is wrong with its record.

    Service, aggregates and provider are other records' to tell. A ratio that
    the record lacks is 0: :class:`DefaultRatios` stands for it.
    """
    try:
        return _read(key, state)
    except errors.InvalidRecord as error:
        return error


def _read(key: str, state: Mapping[str, Any]) -> host_facts.HostFacts:
    whole = record_fields.RecordFields(f"compute_nodes/{key}", state)
    whole.check_major(_OBJECT_MAJOR)
    row = whole.mapping("row")
    uuid, cell, node = row.text("uuid"), whole.text("cell"), row.text("hypervisor_hostname")
    # A row without a host belongs to no service, and Nova passes over it.
    host = "" if row.get("host") is None else row.text("host")
    # Facts are kept by the hundred thousand: equal texts are one and the same.
    cell = _same(cell)
    uuid = key if uuid == key else uuid
    node = host if node == host else node
    # What Nova's objects refuse they refuse of any row.
    numbers = dict(zip(_NUMBERS, row.integers(_NUMBERS), strict=True))
    updated = row.get("free_disk_gb") is not None
    # A row that was never updated may lack what every update writes.
    stats = _stats(row) if updated or row.get("stats") else _NOTHING
    if updated or row.get("supported_instances"):
        _supported_instances(row)
    pci_free = _pci_free(row)
    if not updated:
        return host_facts.HostFacts(
            uuid=uuid, cell=cell, host=host, node=node, updated=False, has_service=False
        )
    free_gb = row.integer("free_disk_gb")
    free_gb = min(free_gb, row.integer("disk_available_least", free_gb))
    _metrics(row)
    return host_facts.HostFacts(
        uuid=uuid,
        cell=cell,
        host=host,
        node=node,
        memory_mb=numbers["memory_mb"],
        free_ram_mb=row.integer("free_ram_mb"),
        local_gb=numbers["local_gb"],
        free_disk_mb=free_gb * 1024,
        disk_mb_used=numbers["local_gb_used"] * 1024,
        vcpus=numbers["vcpus"],
        vcpus_used=numbers["vcpus_used"],
        cpu_allocation_ratio=_ratio(row, "cpu_allocation_ratio"),
        ram_allocation_ratio=_ratio(row, "ram_allocation_ratio"),
        disk_allocation_ratio=_ratio(row, "disk_allocation_ratio"),
        num_instances=_count(row, stats, "num_instances"),
        num_io_ops=_count(row, stats, "io_workload"),
        failed_builds=_count(row, stats, "failed_builds"),
        hypervisor_version=numbers["hypervisor_version"],
        pci_free=pci_free,
        has_service=False,
    )


def attribute(record: str, state: Mapping[str, Any], path: tuple[str, ...]) -> Hashable:
    """Return what stands at a path of the HostState; None where there is nothing.

    For attributes that have no column in the frame: ``stats``, ``cpu_info`` (its
    text), ``supported_instances`` (a tuple of tuples), ``metrics`` (a mapping of
    name to value), ``host_ip`` (its text; an address in Nova),
    ``hypervisor_type``, ``hypervisor_version``, ``hypervisor_hostname``,
    ``updated`` (ISO 8601), ``uuid``, ``host``, ``nodename`` and ``cell_uuid``;
    and :data:`.host_topology.TEXTS`, two texts that are read at once.
    Mappings are followed by the rest of the path.

    :raises InvalidRecord: the record is not as Nova writes it
    """
    row = record_fields.RecordFields(record, state).mapping("row")
    name, rest = path[0], path[1:]
    if name in ("host", "nodename", "cell_uuid"):
        found: Hashable = {
            "host": row.get("host"),
            "nodename": row.get("hypervisor_hostname"),
            "cell_uuid": state.get("cell"),
        }[name]
    elif row.get("free_disk_gb") is None:
        return None
    elif name == "stats":
        found = _stats(row)
    elif name == "metrics":
        # A metric's name has dots, and is one part of the path.
        found = _metrics(row)
    elif name == "supported_instances":
        found = _supported_instances(row)
    elif name == "updated":
        found = row.get("updated_at")
    elif path == host_topology.TEXTS:
        found = (row.get("numa_topology"), row.get("pci_stats"))
    elif name in _VERBATIM:
        found = row.get(name)
    else:
        return None
    for part in rest:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


@functools.lru_cache(maxsize=256)
def _same(text: str) -> str:
    return text


def _ratio(row: record_fields.RecordFields, name: str) -> float:
    # None and 0 both mean that the compute service said nothing.
    return 0.0 if row.get(name) is None else row.number(name)


def _stats(row: record_fields.RecordFields) -> immutables.Map[str, str | None]:
    text = row.get("stats")
    try:
        # What is no text cannot be looked up, and is refused within.
        parse = _parse_stats if type(text) is str else _parse_stats.__wrapped__
        return parse(text)
    except (TypeError, ValueError) as error:
        raise row.wrong("stats", str(error)) from error


@functools.lru_cache(maxsize=1024)
def _parse_stats(text: str) -> immutables.Map[str, str | None]:
    if text == "{}":
        return _NOTHING
    stats = {} if text == "null" else orjson.loads(text)
    if not isinstance(stats, dict):
        raise TypeError("it is no JSON object")
    for name, value in stats.items():
        if isinstance(value, (dict, list)):
            raise TypeError(f"the value of {name!r} is no text")
        if value is not None:
            stats[name] = str(value)
    return immutables.Map(stats)


def _count(row: record_fields.RecordFields, stats: Mapping[str, str | None], name: str) -> int:
    return row.to_integer(f"stats.{name}", stats.get(name, 0))


@functools.lru_cache(maxsize=1024)
def parse_instances(text: str) -> tuple[tuple[Any, ...], ...]:
    """Return supported_instances as the HostState has them."""
    return tuple((arch, hv_type, vm_mode) for arch, hv_type, vm_mode, *_ in orjson.loads(text))


def _supported_instances(row: record_fields.RecordFields) -> tuple[tuple[Any, ...], ...]:
    text = row.get("supported_instances")
    try:
        return parse_instances(text)
    except (TypeError, ValueError) as error:
        raise row.wrong("supported_instances", str(error)) from error


def _metrics(row: record_fields.RecordFields) -> immutables.Map[str, Any]:
    text = row.get("metrics")
    if not text or text == "[]":
        return _NOTHING
    values: dict[str, Any] = {}
    try:
        for metric in orjson.loads(text):
            name, value = metric["name"], metric.get("value")
            if value is not None:
                # Of two of one name Nova's weigher takes the last.
                values[name] = int(value * 100 if name in _PERCENTAGES else value)
            else:
                values.pop(name, None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise row.wrong("metrics", f"{type(error).__name__}: {error}") from error
    return immutables.Map(values)


def _pci_free(row: record_fields.RecordFields) -> int:
    text = row.get("pci_stats")
    if not text:
        return 0
    try:
        count = _count_devices if type(text) is str else _count_devices.__wrapped__
        return count(text)
    except (KeyError, TypeError, ValueError) as error:
        raise row.wrong("pci_stats", f"{type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=256)
def _count_devices(text: str) -> int:
    return sum(int(pool["count"]) for pool in host_topology.parse_pools(text))


#: Columns of compute_nodes with what a node is called: its cell, host and own name.
NAMES = ("cell", "host", "hypervisor_hostname")

_RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")
_PACKED_NUMBERS = (*frame_columns.REPORTED, *_RATIOS)

#: Numbers are fields of HostFacts; ``packed_instances`` is a code of :func:`packed_instances`.
ROW = np.dtype(
    [(name, "<i8") for name in frame_columns.REPORTED]
    + [(name, "<f8") for name in _RATIOS]
    + [("instances", "<i4"), ("updated", "?")]
)
_FORM = struct.Struct(f"<{len(frame_columns.REPORTED)}q{len(_RATIOS)}di?")
assert _FORM.size == ROW.itemsize

_numbers_of = operator.attrgetter(*_PACKED_NUMBERS)

#: Texts of supported_instances have codes up to so many; a cloud has a handful.
_MOST_INSTANCES = 4096
_UNKNOWN = -1
_codes: dict[str, int] = {}
_texts: list[str] = []


def pack(key: str, state: Mapping[str, Any], digest: Any) -> Any:
    """Return a node's facts as bytes, or what was given where bytes do not hold it.

    :param state: the node's record
    :param digest: what :func:`digest` made of it
    """
    if type(digest) is not host_facts.HostFacts or digest.uuid != key:
        return digest
    instances = _code(state["row"].get("supported_instances"))
    try:
        return _FORM.pack(*_numbers_of(digest), instances, digest.updated)
    except struct.error:
        return digest  # a number beyond 64 bits


def unpack(key: str, kept: Any, text: Callable[[str], str]) -> Any:
    """Return what was kept as it was given.

    :param text: column of compute_nodes -> its text
    """
    if type(kept) is not bytes:
        return kept
    return host_facts.HostFacts(**packed_fields(key, kept, tuple(map(text, NAMES))))


def packed_fields(key: str, kept: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a node's facts by name, of what :func:`pack` returned.

    :param names: texts of :data:`NAMES`
    """
    if type(kept) is not bytes:
        found: dict[str, Any] = attrs.asdict(kept, recurse=False)
        return found
    *numbers, _instances, updated = _FORM.unpack(kept)
    found = dict(zip(_PACKED_NUMBERS, numbers, strict=True))
    found["cell"], found["host"], found["node"] = names
    found.update(uuid=key, updated=updated, has_service=False)
    return found


def packed_instances(kept: Any) -> str | None:
    """Return a reported node's text of supported_instances.

    None where the record has to be asked.
    """
    if type(kept) is not bytes:
        return None
    *_numbers, code, updated = _FORM.unpack(kept)
    return _texts[code] if updated and code != _UNKNOWN else None


def _code(text: Any) -> int:
    if type(text) is not str:
        return _UNKNOWN
    code = _codes.get(text)
    if code is None:
        if len(_texts) >= _MOST_INSTANCES:
            return _UNKNOWN
        # The text first: whoever finds the code finds the text.
        code = len(_texts)
        _texts.append(text)
        _codes[text] = code
    return code


FORM = namespaces.DigestForm(pack, unpack)
