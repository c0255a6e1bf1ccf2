# SPDX-License-Identifier: Apache-2.0
"""Which stages go on at the same time: those that fit the processors beside one another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from tools.test_runner import stages


class Ended(Exception):
    """A signal came that ends the run; raised where the main thread waits."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def go(chosen: Sequence[stages.Stage], do: Callable[[stages.Stage], None]) -> None:
    """Do each stage in a thread, as soon as the share it asks for is free.

    Of several that fit, the first goes; one that does not fit lets those behind
    it pass. ``do`` must not raise.
    """
    waiting = list(chosen)
    used: dict[str, float] = {}
    freed = threading.Condition()

    def work(stage: stages.Stage) -> None:
        do(stage)
        with freed:
            del used[stage.name]
            freed.notify()

    with freed:
        while waiting or used:
            stage = next((each for each in waiting if _fits(each, used.values())), None)
            if stage is None:
                freed.wait()
                continue
            waiting.remove(stage)
            used[stage.name] = stage.share
            threading.Thread(target=work, args=(stage,), name=stage.name, daemon=True).start()


def _fits(stage: stages.Stage, used: Collection[float]) -> bool:
    return not used or sum(used) + stage.share <= 1.0 + 1e-9
