# SPDX-License-Identifier: Apache-2.0
"""What the back end holds of the plugin's own processes, read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import bounded
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

_READ = (
    namespaces.SCHEDULERS.name,
    namespaces.REPORTERS.name,
    namespaces.CELLS.name,
    namespaces.MIRRORS.name,
)


@attrs.frozen
class Backend:
    """The records of schedulers, reporters, cells and mirrors, by their keys.

    :param error: why it could not be read; everything else is empty then
    :param unreadable: records that this release cannot decode
    """

    driver: str
    error: str | None = None
    epoch: str = ""
    now_seconds: float = 0.0
    statistics: Mapping[str, int | float | str] = attrs.field(factory=dict)
    schedulers: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    reporters: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    cells: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    mirrors: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    unreadable: tuple[str, ...] = ()

    def age_seconds(self, beat: Mapping[str, Any]) -> float:
        """Return how long ago a process said that it lives.

        What it said in the future is as far away as what it said in the past: its
        clock, or the back end's, was set.
        """
        age = self.now_seconds - float(beat.get("beat_at", 0.0))
        return max(0.0, age) if age >= -backend_time.MARGIN_SECONDS else -age

    def as_dict(self) -> dict[str, Any]:
        """Return what concerns the back end itself, for JSON."""
        return {
            "driver": self.driver,
            "reachable": self.error is None,
            "error": self.error,
            **self.statistics,
            "unreadable": list(self.unreadable),
        }


def read(synchronizer: contract.Synchronizer) -> Backend:
    """Read the back end; that it is down, or not there yet, is a result."""
    try:
        synchronizer.open_existing()
        found: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in _READ}
        unreadable = []
        head = synchronizer.head()
        for page in synchronizer.snapshot(_READ).pages:
            for record in page:
                try:
                    found[record.key.namespace][record.key.key] = _state(record)
                except errors.UndecodableRecord:
                    unreadable.append(str(record.key))
        return Backend(
            synchronizer.name,
            None,
            head.epoch,
            synchronizer.now_seconds(),
            synchronizer.statistics(),
            found[namespaces.SCHEDULERS.name],
            found[namespaces.REPORTERS.name],
            found[namespaces.CELLS.name],
            found[namespaces.MIRRORS.name],
            tuple(unreadable),
        )
    except (errors.NodbError, contract.SnapshotInterrupted) as error:
        return Backend(synchronizer.name, str(error) or type(error).__name__)
    finally:
        synchronizer.close()


def read_within(make: Callable[[], contract.Synchronizer], deadline: bounded.Deadline) -> Backend:
    """Read the back end in bounded time; that it is silent is a result, too.

    :param make: makes the driver
    """
    synchronizer = make()
    bound_seconds = deadline.within(bounded.BACKEND_SECONDS)
    try:
        return bounded.ask(bound_seconds, lambda: read(synchronizer))
    except errors.NoAnswerInTime as error:
        return Backend(synchronizer.name, str(error))


def _state(record: records.Record) -> Mapping[str, Any]:
    return codec.decode(record.payload).state
