# SPDX-License-Identifier: Apache-2.0
"""Who may wait for room, for how long, and in which class.

For each of the two the first that says something decides:

================ ================= ========================= ==============================
what             flavor's spec     user's hint               else
================ ================= ========================= ==============================
seconds          ``nodb:wait``     ``nodb_wait``             of the project, then of all
class            ``nodb:class``    ``nodb_class``            the default class
================ ================= ========================= ==============================

A request that comes to 0 seconds does not wait. nova-api refuses what makes no sense, and
what policy keeps from a user. A conductor cannot refuse any more: what it cannot read,
for an API without the plugin let it through, does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.waiting import queue_settings

#: Extra specs of flavors.
WAIT_SPEC, CLASS_SPEC = "nodb:wait", "nodb:class"
#: Scheduler hints.
WAIT_HINT, CLASS_HINT = "nodb_wait", "nodb_class"

#: What hints of ours begin with; others of the kind are mistakes.
HINT_PREFIX = "nodb_"
#: Of hints that processes give to one another.
INTERNAL_PREFIX = "_nodb_"
HINTS = (WAIT_HINT, CLASS_HINT)

#: As scheduler hints come: texts, or lists of them.
Hints = Mapping[str, str | Sequence[str] | None]


@attrs.frozen
class WaitSettings:
    """The options that say who waits.

    :param default_wait_seconds: of whom nothing else is said; 0: none
    :param project_wait_seconds: by project id
    """

    queue: queue_settings.QueueSettings
    default_wait_seconds: int = 0
    project_wait_seconds: Mapping[str, int] = attrs.field(factory=dict)
    max_wait_seconds: int = 604_800


@attrs.frozen
class WaitTerms:
    """On which terms a request waits."""

    wait_seconds: int
    priority_class: str


def parse_projects(texts: Mapping[str, str]) -> dict[str, int]:
    """Read seconds by project id.

    :raises errors.ConfigurationError: a text is no number of seconds
    """
    seconds = {}
    for project, text in texts.items():
        found = _seconds(text)
        if found is None:
            raise errors.ConfigurationError(
                "[nodb_queue] project_wait_seconds",
                f"{project}:{text}",
                "give each project a whole number of seconds, 0 or more",
            )
        seconds[project] = found
    return seconds


def terms(
    extra_specs: Mapping[str, str], hints: Hints, project_id: str, settings: WaitSettings
) -> WaitTerms | None:
    """Return on which terms a request waits; None for one that does not."""
    wait_seconds = _wait_seconds(extra_specs, hints, project_id, settings)
    priority_class = _class(extra_specs, hints, settings)
    if not wait_seconds or priority_class is None:
        return None
    return WaitTerms(min(wait_seconds, settings.max_wait_seconds), priority_class)


def fault(hints: Hints, settings: WaitSettings) -> str | None:
    """Say what is wrong with a user's hints; None where nothing is."""
    for name in hints:
        if name.startswith(INTERNAL_PREFIX):
            return f"hint {name} is not for users"
        if name.startswith(HINT_PREFIX) and name not in HINTS:
            return f"there is no hint {name}; choose of {', '.join(HINTS)}"
    if WAIT_HINT in hints:
        most = settings.max_wait_seconds
        seconds = _seconds(_one(hints, WAIT_HINT))
        if seconds is None or seconds > most:
            return f"hint {WAIT_HINT} must be a number of seconds from 0 to {most}"
    if CLASS_HINT in hints and _one(hints, CLASS_HINT) not in settings.queue.class_names:
        return f"hint {CLASS_HINT} must be one of {', '.join(settings.queue.class_names)}"
    return None


def class_hint(hints: Hints) -> str | None:
    """Return the class that a user's hint names."""
    return _one(hints, CLASS_HINT)


def is_above_default(name: str, settings: WaitSettings) -> bool:
    """Tell whether a class goes before the default one."""
    names = settings.queue.class_names
    return names.index(name) > names.index(settings.queue.default_class)


def _wait_seconds(
    extra_specs: Mapping[str, str], hints: Hints, project_id: str, settings: WaitSettings
) -> int:
    if WAIT_SPEC in extra_specs:
        return _seconds(extra_specs[WAIT_SPEC]) or 0
    if WAIT_HINT in hints:
        return _seconds(_one(hints, WAIT_HINT)) or 0
    return settings.project_wait_seconds.get(project_id, settings.default_wait_seconds)


def _class(extra_specs: Mapping[str, str], hints: Hints, settings: WaitSettings) -> str | None:
    name = settings.queue.default_class
    if CLASS_SPEC in extra_specs:
        name = extra_specs[CLASS_SPEC]
    elif CLASS_HINT in hints:
        name = _one(hints, CLASS_HINT) or ""
    return name if name in settings.queue.class_names else None


def _one(hints: Hints, name: str) -> str | None:
    """Return the only text of a hint; None where it has none, or several."""
    value = hints[name]
    if isinstance(value, list | tuple):
        value = value[0] if len(value) == 1 else None
    return value if isinstance(value, str) else None


def _seconds(text: str | None) -> int | None:
    # int() takes more than a number: blanks, signs, digits of other scripts.
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 12:
        return None
    return int(text)
