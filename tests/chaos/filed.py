# SPDX-License-Identifier: Apache-2.0
"""Rounds that are kept: of which the documents' table is made, however many runs they came in."""

import json
import pathlib
import subprocess

import attrs

from tests.chaos import report, rounds

DIRECTORY = pathlib.Path(__file__).with_name("filed_rounds")
"""A file for each series, an outcome a line in JSON, as they came."""


def add(outcome: rounds.Outcome, directory: pathlib.Path = DIRECTORY) -> None:
    """Keep a round beside all others: one that was run before stays, whatever it found."""
    directory.mkdir(exist_ok=True)
    (name,) = report.by_series([outcome])
    with (directory / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(attrs.asdict(outcome)) + "\n")


def series(directory: pathlib.Path = DIRECTORY) -> dict[str, list[rounds.Outcome]]:
    """Return all rounds that are kept, by the name of their series.

    :raises ValueError: a line is none
    """
    names = {field.name for field in attrs.fields(rounds.Outcome)}
    found: dict[str, list[rounds.Outcome]] = {}
    for path in sorted(directory.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.stem] = [
            rounds.Outcome(**{name: value for name, value in row.items() if name in names})
            for row in rows
        ]
    return found


def revision(checkout: pathlib.Path) -> str:
    """Return the commit of a checkout, in short, with a mark where its package differs.

    :raises CalledProcessError: it is none
    """
    git = ["git", "-C", str(checkout)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    package = ["diff", "--quiet", "HEAD", "--", "nova_nodb_scheduler"]
    changed = subprocess.run([*git, *package], check=False).returncode
    return commit.stdout.strip() + ("-dirty" if changed else "")
