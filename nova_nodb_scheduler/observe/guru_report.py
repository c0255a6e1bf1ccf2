# SPDX-License-Identifier: Apache-2.0
"""A section of the Guru Meditation Report: where replicator and reporter stand."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from oslo_reports import guru_meditation_report
from oslo_reports.models import with_default_views

#: Title of the section in the report.
TITLE = "NoDB scheduler"

#: Gives an attrs value or a mapping; None where there is nothing to say.
StatusSource = Callable[[], Any]


def register(
    sources: Mapping[str, StatusSource],
    report: type[Any] = guru_meditation_report.TextGuruMeditation,
) -> None:
    """Have the report print what the sources say; a second call replaces them.

    :param sources: by heading. They are called in a signal handler, in the
        midst of whatever the main thread did: they must not take a lock nor
        do I/O. One that raises is printed as its error, for a report is asked
        for when something is wrong.
    """
    sections = [
        section for section in getattr(report, "persistent_sections", []) if section[0] != TITLE
    ]
    # As register_section does, which could only add.
    report.persistent_sections = sections
    report.register_section(TITLE, lambda: model_of(sources))


def model_of(sources: Mapping[str, StatusSource]) -> with_default_views.ModelWithDefaultViews:
    """Return what the sources say now, for the report's views."""
    return with_default_views.ModelWithDefaultViews(
        data={heading: _read(source) for heading, source in sources.items()}
    )


def _read(source: StatusSource) -> Any:
    try:
        return _plain(source())
    except Exception as error:  # noqa: BLE001 - the other sections are wanted all the same
        return f"{type(error).__name__}: {error}"


def _plain(value: Any) -> Any:
    """Return a value as mappings, lists and scalars, which every view can print."""
    if attrs.has(type(value)):
        return {
            field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))
        }
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
