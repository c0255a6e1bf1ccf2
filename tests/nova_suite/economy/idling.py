# SPDX-License-Identifier: Apache-2.0
"""What waits in the process of a test costs nothing: it is woken, and does not look.

A test has some dozen workers of futurist, which Nova's base class has look for their end a hundred
times a second, and as many listeners of oslo.messaging's driver for tests, which look for a message
twenty times. Nova's debug lines, of which there are ten thousands, are formatted by its fixture and
dropped, so that one that cannot be is found; those are Nova's own to try. The plugin's still are.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any

from futurist import _thread as workers
from oslo_messaging._drivers import base, impl_fake

#: After which a worker looks all the same: its executor may be gone unseen.
_LOOK_SECONDS = 1.0

#: A worker may be told to stop by the collector, in a thread that holds the queue's lock.
_LOCK_SECONDS = 0.1

#: Packages that tell what they do, lock by lock and request by request.
_TALKATIVE = (
    *("nova", "placement", "os_brick", "os_vif"),
    *("keystoneauth", "keystoneauth1", "routes", "sqlalchemy", "stevedore", "urllib3"),
    *("oslo_concurrency", "oslo_messaging", "oslo_policy", "oslo_service"),
)


def install() -> None:
    """Do so in this process."""
    workers.ThreadWorker._wait_for_work = _wait_for_work
    workers.ThreadWorker.stop = _stop
    _call_listeners()


def be_quiet() -> None:
    """Have no debug line made but by the plugin."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.INFO)


def _wait_for_work(worker: Any) -> Any:
    worker.idle = True
    waiting = worker.work_queue
    with waiting.not_empty:
        while not waiting._qsize():
            if worker._is_dying():
                raise workers._Stopping
            waiting.not_empty.wait(_LOOK_SECONDS)
        work = waiting._get()
    worker.idle = False
    return work


def _stop(worker: Any) -> None:
    worker.should_stop = True
    waiting = worker.work_queue
    if waiting.mutex.acquire(timeout=_LOCK_SECONDS):
        try:
            waiting.not_empty.notify_all()
        finally:
            waiting.mutex.release()


def _call_listeners() -> None:
    listeners: weakref.WeakSet[Any] = weakref.WeakSet()
    lock = threading.Lock()
    init, stop = impl_fake.FakeListener.__init__, impl_fake.FakeListener.stop
    deliver = impl_fake.FakeExchange.deliver_message

    def made(listener: Any, *args: Any, **kwargs: Any) -> None:
        listener.called = threading.Event()
        init(listener, *args, **kwargs)
        with lock:
            listeners.add(listener)

    def stopped(listener: Any) -> None:
        stop(listener)
        listener.called.set()

    def delivered(exchange: Any, topic: str, *args: Any, **kwargs: Any) -> None:
        deliver(exchange, topic, *args, **kwargs)
        with lock:
            called = [each for each in listeners if any(t.topic == topic for t in each._targets)]
        for listener in called:
            listener.called.set()

    @base.batch_poll_helper
    def poll(listener: Any, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not listener._stopped.is_set():
            # Whatever is delivered from here on calls again.
            listener.called.clear()
            if (message := _next_message(listener)) is not None:
                return message
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left < 0:
                break
            # One that was stopped before the clearing is not called again.
            if not listener._stopped.is_set():
                listener.called.wait(left)
        return None

    impl_fake.FakeListener.__init__ = made
    impl_fake.FakeListener.stop = stopped
    impl_fake.FakeListener.poll = poll
    impl_fake.FakeExchange.deliver_message = delivered


def _next_message(listener: Any) -> Any:
    for target in listener._targets:
        exchange = listener._exchange_manager.get_exchange(target.exchange)
        context, message, replies, requeue = exchange.poll(target, listener._pool)
        if message is not None:
            return impl_fake.FakeIncomingMessage(context, message, replies, requeue)
    return None
