# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told of the kept signatures and of the mirror of Placement."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from prometheus_client import core

from nova_nodb_scheduler.observe import scraped

_COUNTER, _GAUGE = core.CounterMetricFamily, core.GaugeMetricFamily

#: Values of the label ``result``, by the names of the figures.
_LOOKUPS = {"signature_hits": "hit", "signature_misses": "miss"}

#: By the name of the figure: kind, name and help of a metric without labels.
_SIGNATURES: dict[str, tuple[scraped.Family, str, str]] = {
    "cold_evaluations": (
        _COUNTER,
        "nodb_signature_evaluations",
        "Times that all hosts were filtered and weighed for a signature",
    ),
    "rows_patched": (
        _COUNTER,
        "nodb_signature_rows_recomputed",
        "Hosts that had changed and were filtered and weighed again for a kept signature",
    ),
    "rescales": (
        _COUNTER,
        "nodb_signature_rescales",
        "Times that all scores of a kept signature were made again",
    ),
    "evictions": (_COUNTER, "nodb_signature_evictions", "Kept signatures that gave way"),
    "kept": (_GAUGE, "nodb_signatures_kept", "Signatures that are kept"),
    "kept_bytes": (_GAUGE, "nodb_signature_bytes", "What the kept signatures take"),
}
_MIRROR: dict[str, tuple[scraped.Family, str, str]] = {
    "age_seconds": (
        _GAUGE,
        "nodb_mirror_age_seconds",
        "Since the last complete sweep of the mirror of Placement began",
    ),
    "keeping": (_GAUGE, "nodb_mirror_keeping", "1 while this worker keeps the mirror"),
    "hints_waiting": (
        _GAUGE,
        "nodb_mirror_hints_waiting",
        "Hinted providers that this worker has yet to look at",
    ),
    "looks": (_COUNTER, "nodb_mirror_looks", "Hinted providers that this worker looked at"),
    "sweeps": (_COUNTER, "nodb_mirror_sweeps", "Sweeps that this worker completed"),
    "requests": (
        _COUNTER,
        "nodb_mirror_requests",
        "Requests to Placement that keeping the mirror cost this worker",
    ),
    "chosen_compared": (
        _COUNTER,
        "nodb_mirror_chosen_compared",
        "Chosen hosts whose provider trees this worker compared before it allocated",
    ),
    "chosen_changed": (
        _COUNTER,
        "nodb_mirror_chosen_changed",
        "Those of them that had changed in Placement",
    ),
    "failures": (
        _COUNTER,
        "nodb_mirror_failures",
        "Turns of this worker's keeper that failed, for Placement or the back end",
    ),
}


def of_signatures(figures: scraped.Figures) -> Iterator[scraped.AtScrape]:
    """Return what tells how often a signature's filters and weights served again."""
    yield scraped.AtScrape(
        "nodb_signature_lookups",
        "Times that a signature was looked for, by whether it was kept",
        "result",
        functools.partial(scraped.some, figures, _LOOKUPS),
        _COUNTER,
    )
    yield from _alone(_SIGNATURES, figures)


def of_mirror(figures: scraped.Figures) -> Iterator[scraped.AtScrape]:
    """Return what tells how the mirror is kept."""
    return _alone(_MIRROR, figures)


def _alone(
    declared: dict[str, tuple[scraped.Family, str, str]], figures: scraped.Figures
) -> Iterator[scraped.AtScrape]:
    for figure, (family, name, text) in declared.items():
        read = functools.partial(scraped.some, figures, {figure: name})
        yield scraped.AtScrape(name, text, None, read, family)
