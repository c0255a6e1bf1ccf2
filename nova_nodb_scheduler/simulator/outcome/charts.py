# SPDX-License-Identifier: Apache-2.0
"""Draws what the runs came to, as PNG files. Needs matplotlib: the extra ``charts``."""

from __future__ import annotations

import collections
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator.outcome import results

_SIZE_INCHES = (7.0, 4.2)
_DOTS_PER_INCH = 120
_COLORS = ("#2c6eb3", "#b3452c", "#3f8f4f", "#8a63a8")


def check() -> None:
    """See that charts can be drawn, before a long run.

    :raises ConfigurationError: matplotlib is missing
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise errors.ConfigurationError(
            "--charts",
            str(error),
            "install matplotlib with 'pip install nova-nodb-scheduler[charts]', or leave it out.",
        ) from error


def draw(
    directory: pathlib.Path,
    found: Sequence[results.RunResult],
    packing: Mapping[str, Mapping[str, Any]],
) -> list[pathlib.Path]:
    """Write the charts; return their paths.

    :param packing: by strategy; without any there is no chart of it
    :raises ConfigurationError: matplotlib is missing, or the directory cannot
        be written
    """
    check()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        drawn = [
            _draw(directory / "simulation-latency.png", _latency, found),
            _draw(directory / "simulation-feed.png", _feed, found),
            _draw(directory / "simulation-throughput.png", _throughput, found),
            _draw(directory / "simulation-harm.png", _harm, found),
        ]
        if any(each.waits for each in found):
            drawn.append(_draw(directory / "simulation-waits.png", _waits, found))
            drawn.append(_draw(directory / "simulation-shares.png", _project_shares, found))
        if packing:
            drawn.append(_draw(directory / "simulation-packing.png", _packing, packing))
        return drawn
    except OSError as error:
        raise errors.ConfigurationError("--charts", str(directory), str(error)) from error


def _draw(path: pathlib.Path, plot: Callable[[Any, Any], None], what: object) -> pathlib.Path:
    """Have something plotted on axes of its own, with a legend; return where it was written."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.25)
    plot(axes, what)
    axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH)
    return path


def _plot_shares(
    axes: Any,
    found: Sequence[results.RunResult],
    seconds: Callable[[results.RunResult], list[float]],
) -> None:
    """Draw of each run which share of some durations was how short, in milliseconds."""
    for each, color in zip(found, _COLORS, strict=False):
        values = sorted(1000 * duration for duration in seconds(each))
        shares = [(place + 1) / len(values) for place in range(len(values))]
        axes.plot(values, shares, color=color, label=each.strategy)


def _latency(axes: Any, found: Sequence[results.RunResult]) -> None:
    _plot_shares(axes, found, lambda each: [decision[2] for decision in each.decisions])
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds from request to answer")
    axes.set_ylabel("share of requests answered")


def _feed(axes: Any, found: Sequence[results.RunResult]) -> None:
    _plot_shares(axes, found, lambda each: list(each.lags))
    axes.set_xlabel("milliseconds from published to applied in the slowest scheduler")
    axes.set_ylabel("share of batches")


def _throughput(axes: Any, found: Sequence[results.RunResult]) -> None:
    for each, color in zip(found, _COLORS, strict=False):
        counted = collections.Counter(int(decision[0]) for decision in each.decisions)
        seconds = range(max(counted, default=0) + 1)
        axes.plot(
            seconds,
            [counted[second] for second in seconds],
            color=color,
            label=each.strategy,
            drawstyle="steps-post",
        )
    axes.set_xlabel("seconds from the beginning of the run")
    axes.set_ylabel("decisions in the second")
    axes.set_ylim(bottom=0)


def _harm(axes: Any, found: Sequence[results.RunResult]) -> None:
    kinds = (
        ("servers over-committed", "overcommitted_servers"),
        ("refusals at hosts", "refusals_at_hosts"),
        ("claims' conflicts", "conflicts"),
        ("compare-and-sets lost", "writes_lost"),
    )
    width = 0.8 / len(found)
    for number, (each, color) in enumerate(zip(found, _COLORS, strict=False)):
        places = [place + number * width for place in range(len(kinds))]
        bars = axes.bar(
            places,
            [each.figures[name] for _, name in kinds],
            width=width,
            color=color,
            label=each.strategy,
        )
        axes.bar_label(bars, fontsize="small")
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(kinds))], [label for label, _ in kinds]
    )
    axes.set_ylabel("in the whole run")
    axes.set_ylim(bottom=0)


def _waits(axes: Any, found: Sequence[results.RunResult]) -> None:
    """Draw of each class which share of its requests was placed how long after it was made."""
    styles = ("-", "--", ":", "-.")
    runs = [each for each in found if each.waits]
    for each, style in zip(runs, itertools.cycle(styles), strict=False):
        for (name, values), color in zip(
            each.waits.items(), itertools.cycle(_COLORS), strict=False
        ):
            shares = [(place + 1) / len(values) for place in range(len(values))]
            label = name if len(runs) == 1 else f"{each.strategy}: {name}"
            axes.plot(values, shares, style, color=color, label=f"{label} ({len(values):,})")
    axes.set_xlabel("seconds from the request until its servers were sent to their hosts")
    axes.set_ylabel("share of those that waited and were placed")
    axes.set_ylim(bottom=0)


def _project_shares(axes: Any, found: Sequence[results.RunResult]) -> None:
    """Draw of each project what it was given beside what its weight gives it."""
    runs = [each for each in found if each.figures.get("projects")]
    names = list(dict.fromkeys(name for each in runs for name in each.figures["projects"]))
    weights = runs[0].figures["projects"]
    bars = [("by weight", "#999999", [weights[name]["weight_share"] for name in names])]
    for each, color in zip(runs, itertools.cycle(_COLORS), strict=False):
        given = [each.figures["projects"][name]["placed_share"] or 0.0 for name in names]
        bars.append((each.strategy, color, given))
    width = 0.8 / len(bars)
    for number, (label, color, shares) in enumerate(bars):
        places = [place + number * width for place in range(len(names))]
        drawn = axes.bar(places, shares, width=width, color=color, label=label)
        axes.bar_label(drawn, [f"{share:.1%}" for share in shares], fontsize="small")
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names)
    axes.set_ylabel("share of what was placed until the last request came")
    axes.set_ylim(bottom=0, top=1.15 * max(max(shares, default=0.0) for _, _, shares in bars))


def _packing(axes: Any, packing: Mapping[str, Mapping[str, Any]]) -> None:
    whole = max(each["of"] for each in packing.values())
    # Where not even the whole fleet holds it all, there is no bar.
    bars = axes.bar(
        list(packing), [each["hosts"] or 0 for each in packing.values()], color=_COLORS, width=0.6
    )
    axes.bar_label(
        bars,
        [
            f"not even {whole:,}" if each["hosts"] is None else f"{each['hosts']:,}"
            for each in packing.values()
        ],
        fontsize="small",
    )
    axes.axhline(whole, color="#555555", linestyle="--", label=f"the whole fleet, {whole:,} hosts")
    axes.set_ylabel("least hosts that hold it all")
    axes.set_ylim(bottom=0, top=1.15 * whole)
