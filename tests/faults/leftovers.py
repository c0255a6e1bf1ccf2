# SPDX-License-Identifier: Apache-2.0
"""What a fault must not leave behind: allocations of no server, claims that nobody ends."""

import json
from typing import Any

from tests.faults import trial as trial_module
from tools.stack import stack as stack_module

_PATIENCE_SECONDS = 90.0
_ALLOCATIONS = "SELECT DISTINCT consumer_id FROM placement.allocations"
_INSTANCES = "SELECT uuid FROM nova_{cell}.instances WHERE deleted = 0 AND vm_state != 'error'"


def expect_none(trial: trial_module.Trial, driver: str = "sqlalchemy") -> None:
    """Promise that soon, while nobody asks for anything, nothing is left.

    :param driver: of the back end that serves
    """
    trial.wait_for(
        f"allocations are those of the servers on {driver}",
        lambda: allocated(trial.stack) == standing(trial.stack),
        _PATIENCE_SECONDS,
    )
    trial.wait_for(
        f"status says that all is healthy on {driver}, and no claim is pending",
        lambda: is_healthy(trial, driver, is_quiet=True),
        _PATIENCE_SECONDS,
    )


def allocated(stack: stack_module.Stack) -> set[str]:
    """Consumers that hold something in Placement."""
    return {str(consumer) for (consumer,) in stack.sql(_ALLOCATIONS)}


def standing(stack: stack_module.Stack) -> set[str]:
    """Servers in the cells' databases."""
    return {
        str(uuid)
        for cell in stack.settings.cell_names
        for (uuid,) in stack.sql(_INSTANCES.format(cell=cell))
    }


def is_healthy(trial: trial_module.Trial, driver: str, *, is_quiet: bool = False) -> bool:
    """Whether ``status`` finds nothing wrong.

    :param is_quiet: nor a claim pending
    """
    answer = trial.manage("status", "--json")
    try:
        found: dict[str, Any] = json.loads(answer.stdout)
    except json.JSONDecodeError:
        trial.say(f"status: {answer.stderr[-300:]}")
        return False
    trial.say(f"status: claims {found['claims']}; problems {found['problems']}")
    pending = found["claims"].get("pending", 0)
    is_served = bool(found["healthy"] and found["backend"]["driver"] == driver and found["mirror"])
    return is_served and not (is_quiet and pending)
