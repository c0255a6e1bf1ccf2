# SPDX-License-Identifier: Apache-2.0
"""Runs a state machine until it has met all cases that it is for.

What is drawn at random may leave a case out: with few examples one run in ten does. So more are
drawn, each under all that the machine asserts; a case that never comes is a fault of the test.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

import hypothesis
from hypothesis import stateful

#: As many times the examples of one run at the most.
_MOST_RUNS = 8


def run(
    machine: type[stateful.RuleBasedStateMachine],
    seen: MutableMapping[str, int],
    expected: Collection[str],
    **settings: Any,
) -> None:
    """Run it with other examples until each case was counted.

    Without a log: thousands of faults say nothing to a reader of the test's output.

    :param seen: how often each case came by, counted by the machine; begins at 0
    :param settings: of hypothesis, beside those that all machines here have
    :raises AssertionError: of the machine, or for a case that did not come by
    """
    seen.update(dict.fromkeys(seen, 0))
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        _run(machine, seen, expected, settings)
    finally:
        logging.disable(disabled)


def _run(
    machine: type[stateful.RuleBasedStateMachine],
    seen: Mapping[str, int],
    expected: Collection[str],
    settings: Mapping[str, Any],
) -> None:
    for _ in range(_MOST_RUNS):
        stateful.run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine,
            settings=hypothesis.settings(
                # A failure is printed with its blob; nothing is kept on disk.
                database=None,
                deadline=None,
                # As hypothesis does where CI is set: each run would draw what the last one drew.
                derandomize=False,
                print_blob=True,
                suppress_health_check=list(hypothesis.HealthCheck),
                **settings,
            ),
        )
        missing = [what for what in expected if not seen.get(what)]
        if not missing:
            return
    raise AssertionError(f"no case came by {', '.join(missing)}: {dict(seen)}")
