# SPDX-License-Identifier: Apache-2.0
"""Tables for people: eighty columns, and the rest on demand.

What does not fit is not folded into a ladder of single letters: columns that
say less are left out, from the right, and a line names them.
"""

from __future__ import annotations

import errno
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import attrs
import rich.box
import rich.console
import rich.table

from nova_nodb_scheduler.model import records

#: Columns of characters, where nobody asks for more and no terminal has less.
WIDTH = 80
#: Wider than any table: nothing is folded.
UNBOUNDED = 10_000

#: A column that is folded keeps at least so much.
_LEAST_CHARACTERS = 14
_BETWEEN = 2

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@attrs.frozen
class TableColumn:
    """A column of a table.

    :param wide: shown with ``--wide`` only
    :param whole: never folded; uuids, which somebody wants to copy, never are
    """

    title: str
    wide: bool = False
    whole: bool = False


def wide(*titles: str) -> tuple[TableColumn, ...]:
    """Return columns that only ``--wide`` shows."""
    return tuple(TableColumn(title, wide=True) for title in titles)


class _Console(rich.console.Console):
    """rich's own ends the process with status 1, which is a verdict here."""

    def on_broken_pipe(self) -> None:
        """Have the guard of all commands say that nobody reads."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads standard output")


def console(*, everything: bool, file: IO[str] | None = None) -> rich.console.Console:
    """Return where tables are printed.

    Option names stand in brackets, which rich would take for its own mark-up.

    :param everything: ``--wide`` was given: as wide as the contents are
    :param file: standard output, unless another is given
    """
    terminal = (file or sys.stdout).isatty()
    width = UNBOUNDED if everything else None if terminal else WIDTH
    return _Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def table(
    columns: Iterable[str | TableColumn],
    rows: Iterable[Iterable[object]],
    *,
    width: int,
    everything: bool,
) -> tuple[rich.table.Table | None, tuple[str, ...]]:
    """Lay a table out.

    :param width: in characters
    :param everything: ``--wide`` was given
    :returns: the table, None where there is no row; and the titles of the
        columns that were left out although they say something
    """
    declared = [each if isinstance(each, TableColumn) else TableColumn(each) for each in columns]
    texts = [[_text(cell) for cell in row] for row in rows]
    if not texts:
        return None, ()
    told = [index for index in range(len(declared)) if any(row[index] for row in texts)]
    chosen = [index for index in told if everything or not declared[index].wide]
    if not everything:
        chosen = _fitting(chosen, declared, texts, width)
    made = rich.table.Table(
        # The box's own divider is the other blank.
        box=rich.box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _BETWEEN - 1, 0, 0),
    )
    for index in chosen:
        column = declared[index]
        made.add_column(
            column.title,
            overflow="fold",
            no_wrap=_is_whole(column, [row[index] for row in texts]),
            justify=_side(texts, index),
        )
    for row in texts:
        made.add_row(*(row[index] for index in chosen))
    return made, tuple(declared[index].title for index in told if index not in chosen)


def facts(values: Mapping[str, object]) -> rich.table.Table:
    """Lay names and values out; what has no value is left out."""
    made = rich.table.Table(
        box=None, show_header=False, pad_edge=False, padding=(0, _BETWEEN, 0, 0)
    )
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        if _text(value):
            made.add_row(name, _text(value))
    return made


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seconds(value: float | None) -> str | None:
    """Return a duration as a table shows it."""
    return None if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def counts(value: Mapping[str, int] | None) -> str | None:
    """Return what was counted by name; empty where there is nothing."""
    if value is None:
        return None
    return ", ".join(f"{name} {count}" for name, count in sorted(value.items()))


def _fitting(
    chosen: Sequence[int],
    declared: Sequence[TableColumn],
    texts: Sequence[Sequence[str]],
    width: int,
) -> list[int]:
    """Return the first columns that fit side by side; the very first always does."""
    needed = [_needed(declared[index], [row[index] for row in texts]) for index in chosen]
    ends = list(itertools.accumulate(each + _BETWEEN for each in needed))
    return [
        index
        for position, (index, end) in enumerate(zip(chosen, ends, strict=True))
        if position == 0 or end - _BETWEEN <= width
    ]


def _needed(column: TableColumn, cells: Sequence[str]) -> int:
    longest = max(map(len, cells))
    if not _is_whole(column, cells):
        longest = min(longest, _LEAST_CHARACTERS)
    # A title breaks between its words.
    return max([longest, *map(len, column.title.split())])


def _is_whole(column: TableColumn, cells: Sequence[str]) -> bool:
    return column.whole or all(_UUID.fullmatch(cell) for cell in cells if cell)


def _side(texts: Sequence[Sequence[str]], index: int) -> Any:
    numbers = all(_is_number(row[index]) for row in texts if row[index])
    return "right" if numbers else "left"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def shown(text: str) -> str:
    """Return a text as a terminal may get it.

    Names stand in Nova's tables as a compute node chose them: what would move the
    cursor or turn the writing round is shown by its code.
    """
    if text.isprintable():
        return text
    return "\n".join(records.printable_name(line, len(line)) for line in text.split("\n"))


def _text(value: object) -> str:
    return "" if value is None else shown(str(value))
