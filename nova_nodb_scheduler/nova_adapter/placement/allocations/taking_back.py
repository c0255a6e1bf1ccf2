# SPDX-License-Identifier: Apache-2.0
"""How long, and in which order, a process takes back what it wrote to Placement itself.

A scheduler or a conductor that gives a write up removes it at once. The naive way asks the
clock, then looks at what stands, then removes it. A process that is stopped for a minute is
given up by whoever waited for it, who has the server placed anew: with the same, on the same
host. It wakes up, finds just what it wrote, and removes what another answered with.

So the bound is asked between the look and the removal, and the removal is made at the
consumer's generation that was looked at: who slept before the look is late by the clock, and
of who slept behind it the write is refused where another wrote over what stood. What is left
is judged by the rules for orphans. Unhappy path: a consumer that another emptied and wrote
anew while this one slept between the two counts from 1 again, as at the look; Placement has
nothing to tell them apart by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from nova.scheduler.client import report

#: Since before what is taken back was written. Whoever waits for an answer of a process hears
#: that it lives, and gives it up without a sign for 60 s (``rpc_response_timeout``): a sleep as
#: long as that is in here wherever it began. What is left of the 60 s is for the removal itself.
TAKES_BACK_SECONDS = 45.0


@attrs.frozen
class TakeBackWindow:
    """Until when something is its writer's own to take back. Any thread; no I/O.

    :param ends_at: on the clock
    """

    _clock: Callable[[], float]
    ends_at: float

    @classmethod
    def since_now(cls, clock: Callable[[], float] = time.monotonic) -> TakeBackWindow:
        """Return that of what is about to be written.

        :param clock: monotonic seconds
        """
        return cls(clock, clock() + TAKES_BACK_SECONDS)

    def is_open(self) -> bool:
        """Say whether it may be removed; to be asked behind the look at it."""
        return self._clock() < self.ends_at


#: What a server has, by provider, as Placement tells it.
Held = Mapping[str, Mapping[str, Any]]


def reduce(
    context: Any,
    client: Any,
    consumer: str,
    kept: Callable[[Held], Held | None],
    window: TakeBackWindow,
) -> bool:
    """Take some of a server's allocations away; False where they may be left.

    :param client: Nova's ``SchedulerReportClient``
    :param kept: of what it has, what it is to keep; None where nothing is to go. May block
        for reads
    :raises NovaException: Nova's own, like a client's: the server could not be read
    """
    found = client.get_allocs_for_consumer(context, consumer)
    keeps = kept(found["allocations"])
    if keeps is None:
        return True
    if not window.is_open():
        return False
    answer = client.put(
        f"/allocations/{consumer}",
        {**found, "allocations": keeps},
        version=report.CONSUMER_GENERATION_VERSION,
        global_request_id=context.global_id,
    )
    return bool(answer is not None and answer.status_code == 204)


def without_tree(context: Any, client: Any, held: Held, root: str) -> Held | None:
    """Return what a server has but on one tree; None where it has nothing there.

    Shared storage is not of the tree: it may have been the server's before.

    :raises NovaException: Nova's own, like a client's: the tree could not be read
    """
    if not held:
        return None
    tree = {each["uuid"] for each in client.get_providers_in_tree(context, root)}
    if tree.isdisjoint(held):
        return None
    return {name: part for name, part in held.items() if name not in tree}
