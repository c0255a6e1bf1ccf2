# SPDX-License-Identifier: Apache-2.0
"""What the synchronizer layer tells whoever measures it.

The layer does not know Prometheus: :class:`nova_nodb_scheduler.observe.metrics.Metrics`
has these methods. They are called in the measuring object's own thread, must
not block and must not raise.
"""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Counts and times of one replicator."""

    def changes_applied(self, count: int) -> None: ...

    def resynced(self, reason: str) -> None: ...

    def quarantine_size(self, count: int) -> None: ...

    def feed_lag(self, seconds: float) -> None: ...

    def anti_entropy_found(self, kind: str, count: int) -> None: ...

    def replicator_failed(self) -> None: ...

    def replicator_running(self, running: bool) -> None: ...


class NoMeter:
    """Measures nothing."""

    def changes_applied(self, count: int) -> None:
        pass

    def resynced(self, reason: str) -> None:
        pass

    def quarantine_size(self, count: int) -> None:
        pass

    def feed_lag(self, seconds: float) -> None:
        pass

    def anti_entropy_found(self, kind: str, count: int) -> None:
        pass

    def replicator_failed(self) -> None:
        pass

    def replicator_running(self, running: bool) -> None:
        pass
