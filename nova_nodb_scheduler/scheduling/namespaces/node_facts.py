# SPDX-License-Identifier: Apache-2.0
"""A compute node's record as one row of numbers, and its attributes as Nova's HostState has them.

What is said of Nova is ``HostState._update_from_compute_node`` and
``ComputeNode._from_db_object``. Rows are kept by the hundred thousand: objects of
facts would take five times as much, and a frame is filled from rows without any.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Hashable, Mapping
from typing import Any

import attrs
import immutables
import numpy as np
import orjson

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_topology
from nova_nodb_scheduler.scheduling.namespaces import record_fields, service_facts
from nova_nodb_scheduler.store import column_layout

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
)

#: Columns that hold a number, or none.
_OPTIONAL_NUMBERS = (
    "free_ram_mb",
    "free_disk_gb",
    "disk_available_least",
    "running_vms",
    "current_workload",
)

#: Of what the frame does not take, what the namespace declares as columns.
_MORE_NUMBERS = (
    "memory_mb_used",
    "local_gb_used",
    "free_disk_gb",
    "disk_available_least",
    "running_vms",
    "current_workload",
)

#: A node's digest: one packed row. It begins as those of the frame do, by the names of HostFacts;
#: others of the record follow: 0 stands for none. ``instances`` is a code of
#: :func:`instances_of`; where ``whole`` is true, the frame takes it as it is.
ROW = np.dtype(
    [(name, np.int64) for name in frame_columns.REPORTED]
    + [(name, np.float64) for name in frame_columns.RATIOS]
    + [(name, np.int64) for name in _MORE_NUMBERS]
    + [("instances", np.int32), ("updated", np.bool_), ("whole", np.bool_)]
)
_PACKED = struct.Struct(
    f"={len(frame_columns.REPORTED)}q{len(frame_columns.RATIOS)}d{len(_MORE_NUMBERS)}qi??"
)
assert _PACKED.size == ROW.itemsize

#: Where its fields begin, and two of their forms.
_AT = {name: field[1] for name, field in (ROW.fields or {}).items()}
_WHOLE = struct.Struct("=q")
_INSTANCES = struct.Struct("=i?")

#: Texts of supported_instances have codes up to so many; a cloud has a handful.
_MOST_INSTANCES = 4096
_UNKNOWN = -1
_codes: dict[str, int] = {}
_texts: list[str] = []

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


def digest(key: str, state: Mapping[str, Any]) -> bytes | errors.InvalidRecord:
    """Return a compute node's numbers as one :data:`ROW`, or what is wrong with its record.

    Its names are columns of the namespace; service, aggregates and provider are other
    records' to tell. A ratio that the record lacks is 0: :class:`DefaultRatios` stands for it.
    """
    try:
        return _read(key, state)
    except errors.InvalidRecord as error:
        return error


def _read(key: str, state: Mapping[str, Any]) -> bytes:
    whole = record_fields.RecordFields(f"compute_nodes/{key}", state)
    whole.check_major(_OBJECT_MAJOR)
    row = whole.mapping("row")
    if row.text("uuid") != key:
        raise row.wrong("uuid", "it is not the record's key")
    whole.text("cell")
    row.text("hypervisor_hostname")
    # A row without a host belongs to no service, and Nova passes over it.
    if row.get("host") is not None:
        row.text("host")
    # What Nova's objects refuse they refuse of any row.
    numbers = row.column_integers(_NUMBERS)
    if None in numbers:
        row.integer(_NUMBERS[numbers.index(None)])
    vcpus, vcpus_used, memory_mb, memory_mb_used, local_gb, local_gb_used = numbers
    version = row.integer("hypervisor_version")
    free_ram_mb, free_gb, least_gb, running, workload = row.column_integers(_OPTIONAL_NUMBERS)
    updated = row.get("free_disk_gb") is not None
    # A row that was never updated may lack what every update writes.
    stats = _stats(row) if updated or row.get("stats") else _NOTHING
    if updated or row.get("supported_instances"):
        _supported_instances(row)
    pci_free = _pci_free(row)
    free_mb = 0
    if updated:
        if free_ram_mb is None:
            row.integer("free_ram_mb")
        if least_gb is None:
            row.get("disk_available_least")
        free_mb = 1024 * (free_gb if least_gb is None else min(free_gb, least_gb))
        _metrics(row)
    cpu = _ratio(row, "cpu_allocation_ratio", updated)
    ram = _ratio(row, "ram_allocation_ratio", updated)
    disk = _ratio(row, "disk_allocation_ratio", updated)
    try:
        return _PACKED.pack(
            memory_mb,
            free_ram_mb or 0,
            local_gb,
            free_mb,
            local_gb_used * 1024,
            vcpus,
            vcpus_used,
            _count(row, stats, "num_instances") if updated else 0,
            _count(row, stats, "io_workload") if updated else 0,
            _count(row, stats, "failed_builds") if updated else 0,
            version,
            pci_free,
            cpu,
            ram,
            disk,
            memory_mb_used,
            local_gb_used,
            free_gb or 0,
            least_gb or 0,
            running or 0,
            workload or 0,
            code_of_text(row.find("supported_instances")),
            updated,
            updated and cpu and ram and disk,
        )
    except struct.error as error:
        raise whole.wrong("row", "a size of a disk is too large to be told in MiB") from error


def host_row(packed: bytes, ratios: DefaultRatios, service: service_facts.ServiceFacts) -> bytes:
    """Return what a digest and a service give to a frame: a :data:`.frame_columns.ROW`."""
    node = packed[: frame_columns.NODE.size]
    updated, is_whole = packed[-2:]
    if not is_whole:
        *reported, cpu, ram, disk = frame_columns.NODE.unpack(node)
        if not updated:
            reported = [0] * len(reported)
        own = cpu or ratios.cpu, ram or ratios.ram, disk or ratios.disk
        node = frame_columns.NODE.pack(*reported, *own)
    return node + frame_columns.REST.pack(updated, *service)


def reported(packed: bytes) -> dict[str, int] | None:
    """Return the numbers that a digest's node reported, by name; None if it never did."""
    updated = packed[-2]
    if not updated:
        return None
    numbers = frame_columns.NODE.unpack_from(packed)
    return dict(zip(frame_columns.REPORTED, numbers, strict=False))  # behind them are ratios


def number(packed: bytes, name: str) -> int:
    """Return one whole number of a :data:`ROW`."""
    (value,) = _WHOLE.unpack_from(packed, _AT[name])
    return int(value)


def instances_of(packed: bytes) -> str | None:
    """Return a reported node's text of supported_instances.

    None where the record has to be asked.
    """
    code, updated = _INSTANCES.unpack_from(packed, _AT["instances"])
    return _texts[code] if updated and code != _UNKNOWN else None


def text_of_code(code: int) -> str | None:
    """Return the text of a code in a row; None where it stands for no text."""
    return None if code == _UNKNOWN else _texts[code]


def code_of_text(text: Any) -> int:
    """Return the code of a text of supported_instances; one for no text where it has none."""
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
        return row.get("numa_topology"), row.get("pci_stats")
    elif name in _VERBATIM:
        found = row.get(name)
    else:
        return None
    for part in rest:
        found = found.get(part) if isinstance(found, Mapping) else None
    try:
        hash(found)
    except TypeError as error:
        # Columns cannot hold it, and every host would wait for this one.
        raise row.wrong(name, str(error)) from error
    return found


def _ratio(row: record_fields.RecordFields, name: str, updated: bool) -> float:
    # None and 0 both mean that the compute service said nothing.
    value = row.get(name) if updated else row.find(name)
    if value is None:
        return 0.0
    ratio = row.number(name)
    # Written so that "nan", which compares with nothing, is refused as well: whatever is
    # multiplied by it fits everywhere.
    if not abs(ratio) <= column_layout.GREATEST:
        raise row.wrong(name, f"an allocation ratio of {ratio:g} is none")
    return ratio


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
    """Return supported_instances as the HostState has them.

    :raises TypeError, ValueError: they are none, or have no hash, as columns need
    """
    found = tuple((arch, hv_type, vm_mode) for arch, hv_type, vm_mode, *_ in orjson.loads(text))
    hash(found)
    return found


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
