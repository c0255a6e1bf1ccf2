# SPDX-License-Identifier: Apache-2.0
"""Rounds as a table for people, as JSON, and as reStructuredText for the documents."""

import collections
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
from rich import table as rich_table

from tests.chaos import audit, own_path, plan, rounds

_HOSTS = (audit.OVER_COMMIT, audit.CROWDED)
_GROUPS = (audit.GROUP, audit.GROUP_LATE)
_ALLOCATIONS = (audit.UNALLOCATED, audit.MISPLACED)
_ORPHANS = (audit.ORPHAN, audit.ORPHAN_MIGRATION)
_OTHERS = (
    rounds.NO_MEMORY,
    rounds.COMPARE,
    rounds.NO_SERVICE,
    rounds.ENDED,
    rounds.TRACELESS,
    rounds.ROOM_LOST,
    rounds.BROKEN_RUN,
)

_NO_FAILURES = ("ACTIVE", "no valid host", "deleted before it was ACTIVE", "building to the end")

_HEADINGS = (
    "control plane",
    "faults",
    "rounds, seeds",
    "servers asked for, ACTIVE",
    "hosts over-committed",
    "over until withdrawn, longest",
    "most ACTIVE at the end, slots",
    "orphans",
    "other findings",
    "stuck as in stock",
    "left by Nova itself, as in stock",
    "failed otherwise than for want of room",
    "no valid host, of these with room in every sample, where that was looked at",
    "the same at every moment",
    "quiet, from memory after",
    "answer p99, longest",
    "call p99, longest",
    "last run on: revisions",
)


def table(outcomes: Iterable[rounds.Outcome]) -> rich_table.Table:
    """A row for each round, for a terminal."""
    made = rich_table.Table(
        *("seed", "", "asked", "ACTIVE", "slots"),
        *("over", "group", "alloc", "orphan", "stuck", "other"),
        *("lost", "Nova's", "failed", "quiet", "memory", "answer", "call", ""),
        title="Chaos on a real control plane",
        caption="ACTIVE: at the end; over: hosts over-committed in any sample; group: broken; "
        "alloc: servers allocated elsewhere or not at all; lost: stuck as in stock; "
        "Nova's: left by Nova itself, as in stock; failed: otherwise than for want of room; "
        "quiet, memory: seconds; answer, call: p99 and longest, s",
    )
    for each in outcomes:
        found = (
            each.subjects(*_HOSTS),
            each.subjects(*_GROUPS),
            each.subjects(*_ALLOCATIONS),
            each.subjects(*_ORPHANS),
            each.subjects(audit.STUCK),
            each.subjects(*_OTHERS),
        )
        made.add_row(
            *(str(each.seed), each.control_plane, str(each.asked), str(each.active_at_end)),
            str(each.slots),
            *(f"[red]{count}[/red]" if count else "0" for count in found),
            *(str(len(each.lost)), str(len(each.left_by_nova))),
            str(sum(_failures([each]).values())),
            *(_seconds(each.quiet_seconds), _seconds(each.memory_seconds)),
            f"{each.answer_p99_seconds:.0f} {each.answer_longest_seconds:.0f}",
            f"{each.call_p99_seconds:.0f} {each.call_longest_seconds:.0f}",
            "[red]found[/red]" if each.findings else "[green]clean[/green]",
        )
    return made


def to_json(outcomes: Iterable[rounds.Outcome]) -> str:
    return json.dumps([attrs.asdict(outcome) for outcome in outcomes], indent=1)


def by_series(outcomes: Iterable[rounds.Outcome]) -> dict[str, list[rounds.Outcome]]:
    """Return outcomes by the name of the series that such rounds are."""
    found: dict[str, list[rounds.Outcome]] = {}
    for outcome in outcomes:
        way = f"{outcome.own_path}-" if outcome.own_path else ""
        name = outcome.control_plane.replace(", ", "-")
        found.setdefault(f"{name}-{way}{_short(outcome.kinds)}", []).append(outcome)
    return found


def to_rst(of_series: Mapping[str, Sequence[rounds.Outcome]]) -> str:
    """Return a table of some series, a row for each."""
    lines = [
        ".. Written by tools/chaos.sh --file.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
        *_row(_HEADINGS),
    ]
    for _name, outcomes in sorted(of_series.items()):
        lines += _row(_cells(outcomes))
    return "\n".join([*lines, ""])


def _cells(outcomes: Sequence[rounds.Outcome]) -> tuple[str, ...]:
    first = outcomes[0]
    seeds = [outcome.seed for outcome in outcomes]
    of_room = max(outcome.active_at_end for outcome in outcomes)
    active = sum(outcome.ends.get("ACTIVE", 0) for outcome in outcomes)
    finding_seeds = [str(outcome.seed) for outcome in outcomes if outcome.findings]
    return (
        _control_plane(first),
        _short(first.kinds).replace("_", ", "),
        f"{len(outcomes)}: {ranges(seeds)}"
        + (f" (found by {', '.join(finding_seeds)})" if finding_seeds else ""),
        f"{sum(outcome.asked for outcome in outcomes)}, {active}",
        _sum(outcomes, _HOSTS),
        _withdrawn(outcomes),
        f"{of_room} of {max(outcome.slots for outcome in outcomes)}",
        _sum(outcomes, _ORPHANS),
        _counted(_other_findings(outcomes)),
        str(sum(len(outcome.lost) for outcome in outcomes)),
        str(sum(len(outcome.left_by_nova) for outcome in outcomes)),
        _counted(_failures(outcomes)),
        _refused(outcomes, lambda outcome: outcome.room_throughout),
        _refused(outcomes, lambda outcome: outcome.room_at_every_moment),
        f"{_most(each.quiet_seconds for each in outcomes)}, "
        + _most(each.memory_seconds for each in outcomes if first.control_plane != "stock"),
        _times((each.answer_p99_seconds, each.answer_longest_seconds) for each in outcomes),
        _times((each.call_p99_seconds, each.call_longest_seconds) for each in outcomes),
        f"{max(outcome.run_on for outcome in outcomes)}: {_revisions(outcomes)}",
    )


def _revisions(outcomes: Iterable[rounds.Outcome]) -> str:
    return ", ".join(dict.fromkeys(outcome.revision or "unknown" for outcome in outcomes))


def _control_plane(outcome: rounds.Outcome) -> str:
    if outcome.control_plane == "stock":
        return outcome.control_plane
    way = f", {own_path.TITLES[outcome.own_path]}" if outcome.own_path else ""
    return f"the plugin, {outcome.control_plane}{way}"


def _short(kinds: Sequence[str]) -> str:
    return "all" if len(kinds) > len(plan.KINDS) / 2 else "_".join(kinds)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in short: ``1 to 3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)


def _failures(outcomes: Iterable[rounds.Outcome]) -> collections.Counter[str]:
    """Count why servers failed otherwise than for want of room."""
    counts: collections.Counter[str] = collections.Counter()
    for outcome in outcomes:
        for end, count in outcome.ends.items():
            if end not in _NO_FAILURES:
                counts[rounds.reason_of(end)] += count
    return counts


def _other_findings(outcomes: Iterable[rounds.Outcome]) -> collections.Counter[str]:
    """Count hosts, groups and servers by what was wrong with them, but for columns' own kinds."""
    counts: collections.Counter[str] = collections.Counter()
    for outcome in outcomes:
        kinds = {str(finding["kind"]) for finding in outcome.findings} - {*_HOSTS, *_ORPHANS}
        counts.update({kind: outcome.subjects(kind) for kind in kinds})
    return counts


def _refused(
    outcomes: Iterable[rounds.Outcome], counted: Callable[[rounds.Outcome], int | None]
) -> str:
    """Say how many found no host, and how many of them had room, of the rounds that looked.

    :param counted: those that had room; None where nobody looked
    """
    told = [(each, room) for each in outcomes if (room := counted(each)) is not None]
    refused = sum(outcome.ends.get("no valid host", 0) for outcome, _ in told)
    return f"{refused}, {sum(room for _, room in told)}" if told else "n/a"


def _withdrawn(outcomes: Iterable[rounds.Outcome]) -> str:
    """Say how often a host held too much until it was taken back, and for how long at most."""
    seconds = [
        each["last_seconds"] - each["first_seconds"]
        for outcome in outcomes
        for each in outcome.withdrawn
    ]
    return f"{len(seconds)}, {max(seconds):.1f} s" if seconds else "0"


def _counted(counts: collections.Counter[str]) -> str:
    """The most frequent first."""
    return ", ".join(f"{what}: {count}" for what, count in counts.most_common()) or "0"


def _sum(outcomes: Iterable[rounds.Outcome], kinds: Sequence[str]) -> str:
    return str(sum(outcome.subjects(*kinds) for outcome in outcomes))


def _most(values: Iterable[float | None]) -> str:
    known = list(values)
    if None in known:
        return "not in time"
    return f"{max(value for value in known if value is not None):.0f} s" if known else "n/a"


def _times(of_rounds: Iterable[tuple[float, float]]) -> str:
    """Say the p99 of the median round, and the longest of all."""
    p99s, longest = zip(*of_rounds, strict=True)
    return f"{sorted(p99s)[len(p99s) // 2]:.1f} s, {max(longest):.0f} s"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _row(cells: Sequence[str]) -> list[str]:
    first, *rest = cells
    return [f"   * - {first}", *(f"     - {cell}" for cell in rest)]
