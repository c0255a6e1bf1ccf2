# SPDX-License-Identifier: Apache-2.0
"""Whether a process's beat says what this release reads in it.

One that decodes may still hold anything: another release wrote it, or a hand. It is listed as
unreadable then, by what is odd in it, and counts for nobody that is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces


@attrs.frozen
class _Kind:
    """What a field is to be."""

    name: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_number, value.values()))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


_NUMBER = _Kind("a number", _is_number)
_WHOLE = _Kind("a whole number", lambda value: _is_number(value) and value == int(value))
_NUMBERS = _Kind("an object of numbers", _is_numbers)
_OBJECT = _Kind("an object", lambda value: isinstance(value, Mapping))
_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_TEXTS = _Kind("a list of texts", _is_texts)

_OF_ALL = {
    "beat_at": _NUMBER,
    "pid": _WHOLE,
    "host": _TEXT,
    "compute_nodes": _TEXT,
    "compute_node_statements": _NUMBERS,
}
_BY_NAMESPACE: Mapping[str, Mapping[str, _Kind]] = {
    known_namespaces.SCHEDULERS.name: {
        **_OF_ALL,
        "lag_seconds": _NUMBER,
        "schedule_seconds_p50": _NUMBER,
        "schedule_seconds_p99": _NUMBER,
        "memory_bytes": _NUMBER,
        "outcomes": _NUMBERS,
        "fallbacks": _NUMBERS,
        "candidates": _NUMBERS,
        "claims": _OBJECT,
        "settling": _OBJECT,
        "checkpoint": _OBJECT,
        "unproved": _OBJECT,
    },
    known_namespaces.REPORTERS.name: {
        **_OF_ALL,
        "cell": _TEXT,
        "binary": _TEXT,
        "since": _NUMBER,
        "claims_as": _TEXT,
        "guards": _TEXTS,
        "late_seconds": _NUMBERS,
        "behind_seconds": _NUMBERS,
    },
}

#: Fields that say nothing where they are None; of the others None is as odd as anything else.
_NEVER_NONE = frozenset(("beat_at", "pid", "guards", "late_seconds", "behind_seconds"))


def is_beat(namespace: str) -> bool:
    """Say whether a namespace holds beats."""
    return namespace in _BY_NAMESPACE


def oddity(namespace: str, state: Mapping[str, Any]) -> str | None:
    """Say what is odd in a record's state; None of a beat that can be read, or of no beat.

    A field that is missing is not odd: older releases lack some.
    """
    for name, kind in _BY_NAMESPACE.get(namespace, {}).items():
        if name not in state or (state[name] is None and name not in _NEVER_NONE):
            continue
        if not kind.holds(state[name]):
            return f"{name} is not {kind.name}: {_shown(state[name])}"
    return None


def has_time(state: Mapping[str, Any]) -> bool:
    """Say whether a beat tells when it was sent."""
    return _is_number(state.get("beat_at"))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
