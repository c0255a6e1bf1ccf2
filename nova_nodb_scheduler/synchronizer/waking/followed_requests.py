# SPDX-License-Identifier: Apache-2.0
"""The records of requests that wait, followed into their order, and what changed on the way.

One lock around everything: the order is not safe for threads, and requests that come ask
for their place in it from the RPC server's threads. None of them waits for more than some
records: what is taken over anew stands apart until it is whole.
"""

from __future__ import annotations

import enum
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.waiting import wait_queues
from nova_nodb_scheduler.store import host_state_store, store_snapshot

_PENDING = known_namespaces.PENDING.name

#: A clock that goes back by more was set back: what was to happen at some time would wait for it.
_SET_BACK_SECONDS = 5.0

#: Records that are taken over while others wait for the lock.
_MOST_AT_ONCE = 64


class RequestStep(enum.Enum):
    """What has become of a request since it was looked at last, as its record tells."""

    #: There was no room for it.
    PARKED = "parked"
    #: Its servers are written to their cells, and sent.
    BUILDING = "building"
    #: All its servers are sent.
    PLACED = "placed"
    #: Its record is gone.
    GONE = "gone"
    #: Anything else.
    CHANGED = "changed"


@attrs.frozen
class Transition:
    """One request's way.

    :param request: as it stands; of one that is gone as it stood last
    :param before: as it stood before; None of one that is new here
    """

    step: RequestStep
    request: pending.PendingRequest
    before: pending.PendingRequest | None


class FollowedRequests:
    """All requests of one store, in their order.

    :param make: makes an order of nobody
    :ivar lock: to be held for each use of :attr:`queues`
    :ivar queues: the order; another one after a new epoch
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        make: Callable[[], wait_queues.WaitQueues],
    ) -> None:
        self._store = store
        self._make = make
        self._subscription = store.subscribe([_PENDING])
        self.lock = threading.RLock()
        self.queues = make()
        self._resources: set[str] = set()
        self._unreadable: dict[str, str] = {}
        self._is_whole = False
        self._now = float("-inf")

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource classes that anybody asked for, sorted; they only become more."""
        with self.lock:
            return tuple(sorted(self._resources))

    @property
    def unreadable(self) -> dict[str, str]:
        """Why records are none of a request, by key."""
        with self.lock:
            return dict(self._unreadable)

    def follow(self, now: float) -> list[Transition]:
        """Take over what the feed brought since the last call; return what changed.

        One thread. After a new epoch, and at first, it is only told who is being built. So it
        is where a call broke off, for what that had to take over comes no more, and where the
        clock was set back.

        :param now: seconds by the back end's clock
        """
        is_whole, self._is_whole = self._is_whole, False
        was_set_back = now < self._now - _SET_BACK_SECONDS
        touched = self._subscription.drain()
        view = self._store.snapshot().namespace(_PENDING)
        if touched is None or not is_whole or was_set_back:
            changed = self._begin_anew(view, now)
        else:
            changed = self._follow(view, touched, now)
        self._is_whole, self._now = True, now
        return changed

    def _follow(
        self,
        view: store_snapshot.NamespaceView,
        touched: Mapping[str, Iterable[str]],
        now: float,
    ) -> list[Transition]:
        changed: list[Transition] = []
        keys = iter(touched.get(_PENDING, ()))
        while batch := list(itertools.islice(keys, _MOST_AT_ONCE)):
            with self.lock:
                changed += self._changes(view, batch, now)
        return changed

    def _begin_anew(self, view: store_snapshot.NamespaceView, now: float) -> list[Transition]:
        queues = self._make()
        resources: set[str] = set()
        unreadable: dict[str, str] = {}
        building = []
        for key, found in zip(view.row_keys(), view.digests(), strict=True):
            if isinstance(found, errors.InvalidRecord):
                unreadable[key] = str(found)
                continue
            resources.update(_asked_for(found))
            queues.put(found, now)
            if found.state is pending.PendingState.BUILDING:
                building.append(Transition(RequestStep.BUILDING, found, None))
        with self.lock:
            self.queues, self._unreadable = queues, unreadable
            self._resources |= resources
        return building

    def _changes(
        self, view: store_snapshot.NamespaceView, keys: Iterable[str], now: float
    ) -> Iterator[Transition]:
        for key in keys:
            before = self.queues.get(key)
            found = view.digest(key)
            if isinstance(found, errors.InvalidRecord):
                self._unreadable[key] = str(found)
                self.queues.drop(key, now)
                continue
            self._unreadable.pop(key, None)
            if found is None:
                self.queues.drop(key, now)
                if before is not None:
                    yield Transition(RequestStep.GONE, before, before)
                continue
            self._resources.update(_asked_for(found))
            self.queues.put(found, now)
            yield Transition(_step(found, before), found, before)


def _asked_for(request: pending.PendingRequest) -> Iterator[str]:
    return (name for name, amount in request.needs.items() if amount)


def _step(request: pending.PendingRequest, before: pending.PendingRequest | None) -> RequestStep:
    was = None if before is None else before.state
    if request.placed_at and (before is None or not before.placed_at):
        return RequestStep.PLACED
    if request.state is was:
        return RequestStep.CHANGED
    if request.state is pending.PendingState.WAITING:
        return RequestStep.PARKED
    if request.state is pending.PendingState.BUILDING:
        return RequestStep.BUILDING
    return RequestStep.CHANGED
