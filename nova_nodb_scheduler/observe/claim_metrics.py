# SPDX-License-Identifier: Apache-2.0
"""What a scheduler's claims come to, for Prometheus and for its own heartbeat."""

from __future__ import annotations

import collections

import prometheus_client

from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.synchronizer.settlement import pending_waits

#: From a compare-and-set in memory to a back end that struggles, in seconds.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class ClaimMetrics(ledger_claimer.ClaimMeter):
    """Counts of one process; any method from any thread, none blocks.

    Fulfils :class:`.verification.VerificationMeter`, too.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._taken = prometheus_client.Counter(
            "nodb_claims_taken", "Claims taken for servers", registry=registry
        )
        self._refused = prometheus_client.Counter(
            "nodb_claims_refused",
            "Claims that were not taken, by reason",
            ["reason"],
            registry=registry,
        )
        self._gone = prometheus_client.Counter(
            "nodb_claims_gone",
            "Claims whose lease ended before they were confirmed",
            registry=registry,
        )
        self._conflicts = prometheus_client.Counter(
            "nodb_claim_conflicts",
            "Claims refused for what another process wrote on the chosen host since it was read: "
            "the request was decided again",
            registry=registry,
        )
        self._lost = prometheus_client.Counter(
            "nodb_claim_writes_lost",
            "Compare-and-sets of claims that another process won, tries again included",
            registry=registry,
        )
        self._absorbed = prometheus_client.Counter(
            "nodb_claim_writes_absorbed",
            "Claims taken, confirmed or released that lost a compare-and-set and were written "
            "to the same host by the next: one round trip more, and no other decision",
            registry=registry,
        )
        self._verified = prometheus_client.Counter(
            "nodb_allocations_verified",
            "Allocations that were read back from Placement once written, by what became of them",
            ["result"],
            registry=registry,
        )
        for result in ("stands", "withdrawn", "not ours", "unknown"):
            # An alert sees a rise only of what was there before.
            self._verified.labels(result)
        self._waited = prometheus_client.Counter(
            "nodb_refusal_waits",
            "Waits of requests for claims that nobody had confirmed, by what became of these",
            ["end"],
            registry=registry,
        )
        for end in pending_waits.WaitEnd:
            self._waited.labels(end.value)
        seconds = prometheus_client.Histogram(
            "nodb_claim_seconds",
            "Duration of taking, and of confirming, the claims of a request",
            ["step"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self._take_seconds = seconds.labels("take")
        self._confirm_seconds = seconds.labels("confirm")

    def claimed(self, count: int, seconds: float) -> None:
        """Record claims of one call that were taken, and how long the call took."""
        self._counts["taken"] += count
        self._taken.inc(count)
        self._take_seconds.observe(seconds)

    def claim_refused(self, reason: str) -> None:
        """Record one claim that was not taken."""
        self._counts[f"refused: {reason}"] += 1
        self._refused.labels(reason).inc()
        if ledger_claimer.is_conflict(reason):
            self._counts["conflicts"] += 1
            self._conflicts.inc()

    def claims_confirmed(self, count: int, gone: int, seconds: float) -> None:
        """Record claims of one call that were confirmed, and that were gone."""
        self._counts["confirmed"] += count
        self._counts["gone"] += gone
        self._gone.inc(gone)
        self._confirm_seconds.observe(seconds)

    def allocation_verified(self, result: str) -> None:
        """Record one allocation that was looked at once it was written.

        :param result: ``stands``, ``withdrawn``, ``not ours`` or ``unknown``
        """
        self._counts[f"allocations: {result}"] += 1
        self._verified.labels(result).inc()

    def refusal_waited(self, end: pending_waits.WaitEnd) -> None:
        """Record one wait before a refusal."""
        self._counts[f"waits: {end.value}"] += 1
        self._waited.labels(end.value).inc()

    def lost(self, count: int) -> None:
        """Record compare-and-sets that were lost."""
        if count:
            self._counts["writes lost"] += count
            self._lost.inc(count)

    def absorbed(self, count: int) -> None:
        """Record changes of claims that lost a compare-and-set, and were then written."""
        if count:
            self._counts["writes absorbed"] += count
            self._absorbed.inc(count)

    def figures(self) -> dict[str, int]:
        """Return the counts so far, by what is counted."""
        return dict(self._counts)
