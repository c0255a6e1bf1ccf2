# SPDX-License-Identifier: Apache-2.0
"""Events of requests that wait, told to the projects they belong to, through Zaqar.

Nothing waits for Zaqar: events go to a bounded queue in memory, and one thread posts
them, those of a project together and in their order. While Zaqar is away the thread
pauses, the queue fills, and what finds it full is lost, as is a post that was tried
``TRIES`` times and what is left when the process ends. Losses are counted and said in
the log; nothing else comes of them. A post whose answer was lost is made again: the
same event, with the same id.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from oslo_serialization import jsonutils

from nova_nodb_scheduler.nova_adapter.waiting.tenants import zaqar_queues
from nova_nodb_scheduler.synchronizer.waking import waiting_events

LOG = logging.getLogger(__name__)

#: Of the body. Fields are added without another number.
BODY_VERSION = 1
#: Posts of the same events, before they are lost.
TRIES = 3
#: At most so many events are taken at a time.
MAX_BATCH = 100
#: A post is no larger than that, unless one event is. Zaqar takes 256 kB by default.
MAX_POST_BYTES = 100_000
#: Before the second post of the same events; twice that before the third.
PAUSE_SECONDS = 1.0
#: Who may not post into a project is not asked again for so long.
REFUSAL_SECONDS = 60.0
#: Losses of a kind are logged once in that time.
LOG_SECONDS = 60.0
#: Of the year 9999, the last that can be told.
_LAST_SECOND = 253_402_300_799.0
#: Projects that refused are remembered up to that number.
_MAX_REFUSALS = 10_000

OVERFLOW, REFUSED, UNREACHABLE, ENDED = "overflow", "refused", "unreachable", "ended"
#: Why events are lost, and what that means to an operator.
LOSSES: Mapping[str, str] = {
    OVERFLOW: "more happened than Zaqar took, see [nodb_queue] zaqar_max_backlog",
    REFUSED: "see [nodb_queue_zaqar] for what lets a service post into a project's queue",
    UNREACHABLE: "see whether Zaqar and Keystone answer",
    ENDED: "this process ended",
}


class TenantQueues(Protocol):
    """Puts messages into a project's queue; :class:`.zaqar_queues.ZaqarQueues` does."""

    def post(self, project_id: str, messages: Sequence[Mapping[str, Any]]) -> zaqar_queues.Answer:
        """Post messages of a project. May block."""


@attrs.frozen
class TenantEventOptions:
    """How events reach Zaqar.

    :param ttl_seconds: how long Zaqar keeps them
    :param max_backlog: events that wait for Zaqar at most
    :param exit_seconds: how long a process that ends goes on posting
    """

    ttl_seconds: int = 3600
    max_backlog: int = 10_000
    exit_seconds: float = 2.0


def body(event: waiting_events.WaitingEvent, event_id: str) -> dict[str, Any]:
    """Return what a tenant reads of an event: JSON values, and no name of a host."""
    request = event.request
    return {
        "version": BODY_VERSION,
        "id": event_id,
        "event": event.kind.value,
        "at": _text(event.at_seconds),
        "servers": list(request.servers),
        "flavor": request.flavor,
        "class": request.priority_class,
        "since": _text(request.asked_at),
        "deadline": _text(request.deadline_at),
        "attempt": request.grant.attempt,
        "reason": event.reason or request.reason,
    }


def _text(seconds: float) -> str:
    # A record may say anything; no number is to stop the thread.
    moment = datetime.datetime.fromtimestamp(min(max(0.0, seconds), _LAST_SECOND), datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@attrs.define(eq=False)
class _Account:
    """What became of events, and what of it was said; any thread."""

    _clock: Callable[[], float]
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    posted: int = attrs.field(init=False, default=0)
    lost: dict[str, int] = attrs.field(init=False, factory=lambda: dict.fromkeys(LOSSES, 0))
    _unsaid: dict[str, int] = attrs.field(init=False, factory=lambda: dict.fromkeys(LOSSES, 0))
    _said_at: dict[str, float] = attrs.field(init=False, factory=dict)

    def post(self, count: int) -> None:
        with self._lock:
            self.posted += count

    def lose(self, why: str, count: int, told: str = "") -> None:
        """Count a loss; say it, with those since it was said last, once in a while."""
        with self._lock:
            self.lost[why] += count
            self._unsaid[why] += count
            now = self._clock()
            if now - self._said_at.get(why, float("-inf")) < LOG_SECONDS:
                return
            self._said_at[why] = now
            unsaid, self._unsaid[why] = self._unsaid[why], 0
        LOG.warning(
            "Events of requests that wait did not reach their projects: %(count)d, for %(why)s"
            "%(told)s; %(remedy)s. Nothing else is affected.",
            {
                "count": unsaid,
                "why": why,
                "told": f" ({told})" if told else "",
                "remedy": LOSSES[why],
            },
        )


@attrs.frozen
class _Message:
    """An event as it is posted."""

    project_id: str
    entry: Mapping[str, Any]
    size_bytes: int


@attrs.define(eq=False)
class _Life:
    """From a start to an end: a thread that outlives its own leaves the next one's alone."""

    ended: threading.Event = attrs.field(factory=threading.Event)
    until: float = float("inf")


@attrs.define(eq=False, slots=False)
class TenantEvents(waiting_events.EventSink):
    """Posts events to their projects from a thread that starts with the first one.

    One that was stopped starts again with the next event: services restart in place.

    :param queues: used by that thread alone
    :param clock: monotonic
    :param wait: waits for an event to be set, for so many seconds at most; tells whether it was
    """

    _queues: TenantQueues
    _options: TenantEventOptions
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _make_id: Callable[[], str] = attrs.field(default=lambda: str(uuid.uuid4()), kw_only=True)
    _wait: Callable[[threading.Event, float], bool] = attrs.field(
        default=threading.Event.wait, kw_only=True
    )
    _start_lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _life: _Life = attrs.field(init=False, factory=_Life)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _pid: int | None = attrs.field(init=False, default=None)
    _complained: bool = attrs.field(init=False, default=False)
    #: Projects that refused: until when they are not asked again, and what was said.
    _refusals: dict[str, tuple[float, str]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._account = _Account(self._clock)
        #: None wakes the thread.
        self._waiting: queue.Queue[waiting_events.WaitingEvent | None] = queue.Queue()

    # -- threads of conductors and schedulers ---------------------------------

    def publish(self, event: waiting_events.WaitingEvent) -> None:
        """See :class:`.waiting_events.EventSink`."""
        # Threads at once may exceed the bound by their number.
        if self._waiting.qsize() >= self._options.max_backlog:
            self._account.lose(OVERFLOW, 1)
        else:
            self._waiting.put_nowait(event)
            self._ensure_started()

    def _ensure_started(self) -> None:
        if self._pid == os.getpid():
            return
        with self._start_lock:
            if self._pid == os.getpid():
                return
            self._life = _Life()
            thread = threading.Thread(
                target=self._run, args=(self._life,), name="nodb-tenant-events", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # No thread is to be had: the next event tries again.
                LOG.warning("Events to projects wait: %(error)s", {"error": error})
                return
            self._thread, self._pid = thread, os.getpid()
            atexit.register(self.stop)

    def stop(self) -> None:
        """Post what can be within ``exit_seconds``, and end; idempotent, from any thread."""
        life = self._life
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        life.until = self._clock() + self._options.exit_seconds
        life.ended.set()
        self._waiting.put_nowait(None)
        thread.join(self._options.exit_seconds)
        left = len(self._take_all(block=False))
        if left:
            self._account.lose(ENDED, left)
        self._pid = None

    def figures(self) -> Mapping[str, float]:
        """Return how many events were posted and lost, by why, and how many wait."""
        return {
            "posted": float(self._account.posted),
            "waiting": float(self._waiting.qsize()),
            **{why: float(count) for why, count in self._account.lost.items()},
        }

    # -- the posting thread ---------------------------------------------------

    def _run(self, life: _Life) -> None:
        while self._clock() < life.until:
            taken = self._take_all(block=not life.ended.is_set(), most=MAX_BATCH)
            if not taken and life.ended.is_set():
                return
            self._deliver(taken, life)

    def _take_all(
        self, *, block: bool, most: int | None = None
    ) -> list[waiting_events.WaitingEvent]:
        taken: list[waiting_events.WaitingEvent] = []
        while most is None or len(taken) < most:
            try:
                event = self._waiting.get(block=block and not taken)
            except queue.Empty:
                break
            if event is not None:
                taken.append(event)
            elif block:
                break
        return taken

    def _deliver(self, events: Iterable[waiting_events.WaitingEvent], life: _Life) -> None:
        by_project: dict[str, list[_Message]] = {}
        for event in events:
            message = self._message(event)
            by_project.setdefault(message.project_id, []).append(message)
        for project_id, messages in by_project.items():
            for batch in _split(messages):
                self._post(project_id, [message.entry for message in batch], life)

    def _message(self, event: waiting_events.WaitingEvent) -> _Message:
        told = body(event, self._make_id())
        entry = {"ttl": self._options.ttl_seconds, "body": told}
        return _Message(event.request.project_id, entry, len(jsonutils.dump_as_bytes(entry)))

    def _post(self, project_id: str, entries: Sequence[Mapping[str, Any]], life: _Life) -> None:
        """Post what belongs to one project, or count it as lost."""
        until, reason = self._refusals.get(project_id, (float("-inf"), ""))
        if self._clock() < until:
            self._account.lose(REFUSED, len(entries), f"project {project_id}: {reason}")
            return
        for tried in range(1, TRIES + 1):
            if self._clock() >= life.until:
                self._account.lose(ENDED, len(entries))
                return
            answer = self._ask(project_id, entries)
            if isinstance(answer, zaqar_queues.Posted):
                self._account.post(len(entries))
                return
            if isinstance(answer, zaqar_queues.Refused):
                self._refuse(project_id, answer.reason)
                self._account.lose(REFUSED, len(entries), f"project {project_id}: {answer.reason}")
                return
            reason = answer.reason
            if tried < TRIES:
                self._wait(life.ended, tried * PAUSE_SECONDS)
        self._account.lose(UNREACHABLE, len(entries), reason)

    def _ask(self, project_id: str, entries: Sequence[Mapping[str, Any]]) -> zaqar_queues.Answer:
        try:
            return self._queues.post(project_id, entries)
        except Exception as error:
            # The thread must not end by it, and the next post may do better.
            if not self._complained:
                LOG.exception("Events to projects: an error that nobody foresaw.")
            self._complained = True
            return zaqar_queues.Unreachable(str(error))

    def _refuse(self, project_id: str, reason: str) -> None:
        now = self._clock()
        if len(self._refusals) >= _MAX_REFUSALS:
            self._refusals = {
                name: refusal for name, refusal in self._refusals.items() if refusal[0] > now
            }
        self._refusals[project_id] = (now + REFUSAL_SECONDS, reason)


def _split(messages: Iterable[_Message]) -> Iterable[list[_Message]]:
    """Return messages in their order, in parts that one post takes."""
    part: list[_Message] = []
    size_bytes = 0
    for message in messages:
        if part and size_bytes + message.size_bytes > MAX_POST_BYTES:
            yield part
            part, size_bytes = [], 0
        part.append(message)
        size_bytes += message.size_bytes
    if part:
        yield part
