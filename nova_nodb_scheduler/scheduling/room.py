# SPDX-License-Identifier: Apache-2.0
"""Room on hosts that this process has promised, seen by its next decision at once."""

from __future__ import annotations

from collections.abc import Mapping

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import choice
from nova_nodb_scheduler.scheduling import engine as engine_module
from nova_nodb_scheduler.scheduling import reservations as reservations_module


class Room:
    """Reservations and the columns they are counted in, kept together. Any thread."""

    def __init__(
        self,
        engine: engine_module.Engine,
        reservations: reservations_module.Reservations,
    ) -> None:
        self._engine = engine
        self._reservations = reservations

    def take(self, consumer: str, request: requests.Request, chosen: choice.Choice) -> bool:
        """Count what a server takes of its host; False if others took the room meanwhile."""
        with self._engine.lock:
            if not self._engine.allocation_requests(request, chosen.uuid):
                return False
            resources = resources_of(chosen)
            self._reservations.reserve(
                consumer, chosen.uuid, resources, self._engine.generation(chosen.uuid)
            )
            self._engine.use(chosen.uuid, resources)
            return True

    def keep(self, consumer: str) -> None:
        """The allocation is written: hold the room until the host's record shows it."""
        self._reservations.confirm(consumer)

    def give_back(self, consumer: str, chosen: choice.Choice) -> None:
        """Nothing was written; no-op for a consumer that holds no room."""
        with self._engine.lock:
            if self._reservations.release(consumer) is not None:
                self._engine.use(
                    chosen.uuid, {name: -amount for name, amount in resources_of(chosen).items()}
                )

    def left(self, chosen: choice.Choice) -> Mapping[str, int]:
        """Return what is left of each class that a choice takes, by all that is known here."""
        with self._engine.lock:
            frame = self._engine.frame
            row = frame.row_of(chosen.uuid)
            if row is None:
                return {}
            found = {name: frame.resource(name) for name in resources_of(chosen)}
            return {
                name: int(has.capacity[row]) - int(has.used[row])
                for name, has in found.items()
                if has is not None
            }


def resources_of(chosen: choice.Choice) -> Mapping[str, int]:
    """Return what a choice takes of its host's root provider."""
    part = chosen.allocation_requests[0]["allocations"].get(chosen.uuid, {})
    return dict(part.get("resources", {}))
