# SPDX-License-Identifier: Apache-2.0
"""What a replicator is given, what it says of itself, and to whom it counts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if value <= 0:
        raise ValueError(f"{attribute.name} must be greater than 0, not {value!r}")


@attrs.frozen(kw_only=True)
class ReplicatorOptions:
    """How a replicator follows.

    :param batch_limit: most changes of one fetch
    :param wait_seconds: longest wait for a change; also how late a stop is noticed
    :param canary_interval_seconds: pause between proofs of life
    :param silence_seconds: a canary that is not back by then says that the
        feed is dead
    :param anti_entropy_interval_seconds: from the end of one sweep of
        everything to the next
    :param anti_entropy_page_seconds: pause between the pages of a sweep
    :param reconnect_min_seconds: pause after the first failure; it doubles
    :param reconnect_max_seconds: up to this
    :param collect_interval_seconds: pause between collections of the back
        end's tombstones and history
    :param collect_keep_seconds: what is younger stays
    :param silent_heartbeat_seconds: a scheduler whose heartbeat did not change for that
        long is dead, and its record is removed
    :param quarantine_limit: unreadable records that are kept by key
    """

    batch_limit: int = attrs.field(default=1000, validator=_positive)
    wait_seconds: float = attrs.field(default=1.0, validator=_positive)
    canary_interval_seconds: float = attrs.field(default=2.0, validator=_positive)
    silence_seconds: float = attrs.field(default=10.0, validator=_positive)
    anti_entropy_interval_seconds: float = attrs.field(default=600.0, validator=_positive)
    anti_entropy_page_seconds: float = attrs.field(default=0.5, validator=attrs.validators.ge(0))
    reconnect_min_seconds: float = attrs.field(default=0.5, validator=_positive)
    reconnect_max_seconds: float = attrs.field(default=10.0, validator=_positive)
    collect_interval_seconds: float = attrs.field(default=300.0, validator=_positive)
    collect_keep_seconds: float = attrs.field(default=3600.0, validator=_positive)
    silent_heartbeat_seconds: float = attrs.field(default=3600.0, validator=_positive)
    quarantine_limit: int = attrs.field(default=1000, validator=_positive)


class State(enum.Enum):
    """Where a replicator stands."""

    #: Nothing was read yet.
    STARTING = "starting"
    #: Everything is being read; the store is incomplete.
    SNAPSHOT = "snapshot"
    FOLLOWING = "following"
    #: The back end does not answer; the store is what it was.
    DISCONNECTED = "disconnected"
    #: The feed fell silent, or the thread failed or is gone.
    DEAD = "dead"


class StepOutcome(enum.Enum):
    """What one step did."""

    #: The feed had nothing new.
    IDLE = "idle"
    #: Changes came, and no more are waiting.
    CHANGES = "changes"
    #: Changes came, and more are waiting.
    MORE = "more"
    #: A page of a snapshot was read, or its end was reached.
    SNAPSHOT = "snapshot"
    #: The cursor was given up: the next step begins a snapshot.
    RESYNC = "resync"
    #: The back end did not answer.
    DISCONNECTED = "disconnected"
    #: Too early after a failure to try again.
    BACKING_OFF = "backing off"

    @property
    def work_is_waiting(self) -> bool:
        """Whether the next step has something to do without any wait."""
        return self in (StepOutcome.MORE, StepOutcome.SNAPSHOT, StepOutcome.RESYNC)


#: Reasons for a resync beside those of :class:`records.ResyncReason`.
SILENCE = "silence"
SNAPSHOT_INTERRUPTED = "snapshot interrupted"
DIVERGED = "back end and store diverged"
FAILURE = "failure"


@attrs.frozen(kw_only=True)
class ReplicatorStatus:
    """A replicator at one moment.

    :param epoch: the epoch the store holds, empty before the first snapshot
    :param cursor_version: None while no feed is followed
    :param lag_seconds: how far the feed is behind, as the canary shows it
    :param proof_age_seconds: age of what is proved: everything older has been
        applied; None while nothing is proved
    :param fetch_age_seconds: since the back end last answered
    :param resyncs: count by reason
    :param anti_entropy: count by kind of finding
    :param failures: unexpected errors, each followed by a resync
    :param detail: why it is disconnected or dead
    :param thread_alive: None where no thread was started
    """

    state: State
    identity: str
    driver: str
    epoch: str
    cursor_version: int | None
    lag_seconds: float | None
    proof_age_seconds: float | None
    fetch_age_seconds: float | None
    resyncs: Mapping[str, int]
    snapshots: int
    applied: int
    quarantined: int
    anti_entropy: Mapping[str, int]
    sweeps: int
    failures: int
    detail: str
    thread_alive: bool | None


class ReplicationMeter:
    """Counts and times of one replicator; measures nothing by itself.

    The synchronizer knows no Prometheus: :mod:`.scheduler_metrics` of ``observe``
    measures. The methods are called in the measuring object's own thread, must not
    block and must not raise.
    """

    def changes_applied(self, count: int) -> None:
        """So many changes are in the store by now."""

    def resynced(self, reason: str) -> None:
        """Everything is read again."""

    def quarantine_size(self, count: int) -> None:
        """So many records are kept aside."""

    def feed_lag(self, seconds: float) -> None:
        """A canary flew for so long."""

    def anti_entropy_found(self, kind: str, count: int) -> None:
        """A sweep found records that differ."""

    def replicator_failed(self) -> None:
        """A step raised what nobody expected."""

    def replicator_running(self, running: bool) -> None:
        """The thread began, or ended."""
