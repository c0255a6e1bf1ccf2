# SPDX-License-Identifier: Apache-2.0
"""A compute node's facts as a store keeps them: a row of bytes.

By the hundred thousand, objects of facts take five times as much, and a frame
of hosts is filled from such rows without making one.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.scheduling import host_facts, plain_columns

#: Columns of compute_nodes with what a node is called: its cell, host and own name.
NAMES = ("cell", "host", "hypervisor_hostname")

_RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")
_NUMBERS = (*plain_columns.REPORTED, *_RATIOS)

#: Numbers are fields of HostFacts; ``instances`` is a code of :func:`instances`.
ROW = np.dtype(
    [(name, "<i8") for name in plain_columns.REPORTED]
    + [(name, "<f8") for name in _RATIOS]
    + [("instances", "<i4"), ("updated", "?")]
)
_FORM = struct.Struct(f"<{len(plain_columns.REPORTED)}q{len(_RATIOS)}di?")
assert _FORM.size == ROW.itemsize

_numbers_of = operator.attrgetter(*_NUMBERS)

#: Texts of supported_instances have codes up to so many; a cloud has a handful.
_MOST_INSTANCES = 4096
_UNKNOWN = -1
_codes: dict[str, int] = {}
_texts: list[str] = []


def keep(key: str, state: Mapping[str, Any], digest: Any) -> Any:
    """Return a node's facts as bytes, or what was given where bytes do not hold it.

    :param state: the node's record
    :param digest: what :func:`.node_facts.digest` made of it
    """
    if type(digest) is not host_facts.HostFacts or digest.uuid != key:
        return digest
    instances = _code(state["row"].get("supported_instances"))
    try:
        return _FORM.pack(*_numbers_of(digest), instances, digest.updated)
    except struct.error:
        return digest  # a number beyond 64 bits


def restore(key: str, kept: Any, text: Callable[[str], str]) -> Any:
    """Return what was kept as it was given.

    :param text: column of compute_nodes -> its text
    """
    if type(kept) is not bytes:
        return kept
    return host_facts.HostFacts(**fields(key, kept, tuple(map(text, NAMES))))


def fields(key: str, kept: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a node's facts by name, of what :func:`keep` returned.

    :param names: texts of :data:`NAMES`
    """
    if type(kept) is not bytes:
        found: dict[str, Any] = attrs.asdict(kept, recurse=False)
        return found
    *numbers, _instances, updated = _FORM.unpack(kept)
    found = dict(zip(_NUMBERS, numbers, strict=True))
    found["cell"], found["host"], found["node"] = names
    found.update(uuid=key, updated=updated, has_service=False)
    return found


def instances(kept: Any) -> str | None:
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


FORM = namespaces.DigestForm(keep, restore)
