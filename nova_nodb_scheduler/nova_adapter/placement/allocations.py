# SPDX-License-Identifier: Apache-2.0
"""Writes the allocations of new servers: one call for a request, or for several.

Only for consumers that have no allocations. Whoever may have some (moves,
evacuations, resizes) goes Nova's own way and never comes here.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.nova_adapter.placement import (
    batching,
    conflicts,
    course,
    outcomes,
    posting,
    reading_back,
    together,
    undoing,
)


class AllocationWriter:
    """The one way by which a process writes allocations of new servers.

    Any thread may call; it blocks for HTTP, behind the writes that came before,
    and never much beyond the deadline and the client's own timeouts.

    :param client: Nova's ``SchedulerReportClient``
    :param batch_window_seconds: how long a write waits at most for those that
        are on their way (:meth:`coming`); 0: only what queues up while another
        is under way shares a call
    :param max_batch_consumers: servers that share a call; a request with more
        still gets one call. Beyond 8 a server costs hardly less, and all wait
        for the slowest
    :param max_calls: calls under way at once; no two of them touch the same
        host, or the same server
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        client: Any,
        *,
        batch_window_seconds: float = 0.0,
        max_batch_consumers: int = 16,
        max_calls: int = 1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._posting = posting.Posting(client)
        self._batcher: batching.Batcher[together.Part, conflicts.Reply] = batching.Batcher(
            lambda parts: together.write(self._posting.post, parts),
            window_seconds=batch_window_seconds,
            max_size=max_batch_consumers,
            max_calls=max_calls,
            touches=_touches,
        )
        self._pauses = reading_back.Pauses(clock, sleep, rng or random.Random())

    @property
    def calls(self) -> Mapping[str, int]:
        """HTTP calls so far, by kind: post, get, empty."""
        return dict(self._posting.calls)

    def coming(self) -> contextlib.AbstractContextManager[None]:
        """Say that this thread decides a request, and will probably write.

        Others wait for its first write, for :meth:`not_coming`, or for the end of
        this. Not to be nested.
        """
        return self._batcher.coming()

    def not_coming(self) -> None:
        """Say that this thread's request writes nothing here after all."""
        self._batcher.not_coming()

    def write(
        self,
        servers: Sequence[outcomes.Server],
        deadline: float,
        *,
        divisible: bool = False,
        request_id: str | None = None,
    ) -> dict[str, outcomes.Outcome]:
        """Write the allocations of one request's servers.

        A second call with servers that were written finds them and says so.

        :param deadline: on the clock, until which races and lost answers are
            tried again
        :param divisible: servers stay written though others of the request
            cannot be; else all are written or none
        :param request_id: of the request, for Placement's log
        :return: an outcome for each consumer
        :raises ValueError: a consumer is named twice
        """
        if len({server.consumer for server in servers}) < len(servers):
            raise ValueError("A consumer is named twice in one request; give each server once.")
        reading = reading_back.ReadBack(self._posting, self._pauses, deadline, request_id)
        running = course.Course(self._posting, self._batcher, reading)
        return running.write(tuple(servers), divisible=divisible)

    def undo(
        self,
        servers: Sequence[outcomes.Server],
        deadline: float,
        *,
        unsure: bool = False,
        request_id: str | None = None,
    ) -> Collection[str]:
        """Remove what was written for servers, where Placement still has exactly that.

        A consumer that has other allocations by now is left alone.

        :param unsure: their outcome is Unknown: look before anything is removed, and
            not before another thread's call that may write it yet has ended
        :return: consumers of which it is not known that this write is gone
        """
        reading = reading_back.ReadBack(self._posting, self._pauses, deadline, request_id)
        consumers = frozenset(server.consumer for server in servers)
        if unsure and not self._batcher.untouched(consumers, reading.left_seconds()):
            return consumers
        return undoing.undo(self._posting, reading, servers, unsure=unsure)


def _touches(part: together.Part) -> frozenset[str]:
    """Return the providers and consumers of a part."""
    providers = (name for server in part.servers for name in server.request["allocations"])
    return frozenset(providers).union(server.consumer for server in part.servers)
