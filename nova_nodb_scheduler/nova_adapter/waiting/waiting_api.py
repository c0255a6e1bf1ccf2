# SPDX-License-Identifier: Apache-2.0
"""What nova-api does for requests that may wait.

It refuses hints that make no sense or that policy keeps from a user, before anything is
made; it takes a server that its user deleted out of its request; and it may put requests
into the queue itself, so that nobody else need be there when a user asks.

Users wait for its answers. What is not part of an answer is done by a thread, and a back
end that did not answer is left alone for a while.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import nova.conductor.api
import nova.policy
import webob.exc
from nova.policies import base as policies
from oslo_policy import policy as oslo_policy

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import (
    request_payload,
    request_records,
    wait_policy,
)
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.pending import (
    counted_backlog,
    pending_ledger,
    pending_rules,
)
from nova_nodb_scheduler.synchronizer.waking import newcomer_gate

LOG = logging.getLogger(__name__)

WAIT_RULE = "nodb:wait"
CLASS_RULE = "nodb:class:"

#: How long a back end that did not answer is not asked.
_AWAY_SECONDS = 10.0
#: Deletions that wait for the thread; who comes beyond is found gone by others.
_MOST_DELETED = 1000
_JOIN_SECONDS = 2.0


def rules(settings: wait_policy.WaitSettings) -> list[Any]:
    """Return the rules of Nova's policy that say who may wait, and in which class."""
    operations: Any = [{"method": "POST", "path": "/servers"}]
    classes = [
        oslo_policy.DocumentedRuleDefault(
            f"{CLASS_RULE}{name}",
            policies.ADMIN if wait_policy.is_above_default(name, settings) else policies.RULE_ANY,
            f"Ask for a server of priority class {name}, by the hint {wait_policy.CLASS_HINT}",
            operations,
        )
        for name in settings.queue.class_names
    ]
    waiting = oslo_policy.DocumentedRuleDefault(
        WAIT_RULE,
        policies.RULE_ANY,
        f"Say by the hint {wait_policy.WAIT_HINT} how long a server waits for room",
        operations,
    )
    return [waiting, *classes]


class WaitingApi:
    """The requests that come to one nova-api; any thread.

    :param synchronizer: of the ledger; opened with the first request that needs it
    :param records: makes requests; None where conductors do
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        ledger: pending_ledger.PendingLedger,
        settings: wait_policy.WaitSettings,
        records: request_records.RequestRecords | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synchronizer = synchronizer
        self._ledger = ledger
        self._settings = settings
        self._records = records
        self._backlog = counted_backlog.CountedBacklog(
            synchronizer, settings.queue.max_pending, settings.queue.max_pending_per_project, clock
        )
        self._clock = clock
        self._away_until = float("-inf")
        self._lock = threading.Lock()
        self._is_open = False
        self._deleted: queue.Queue[str | None] = queue.Queue(_MOST_DELETED)
        self._thread: threading.Thread | None = None

    # -- refusals ----------------------------------------------------------------------

    def check(self, context: Any, hints: wait_policy.Hints) -> None:
        """Refuse hints of ours that cannot be heeded. No I/O.

        :raises HTTPBadRequest: one makes no sense; the text says what is wrong
        :raises HTTPForbidden: policy keeps one from this user
        """
        wrong = wait_policy.fault(hints, self._settings)
        if wrong is not None:
            raise webob.exc.HTTPBadRequest(explanation=f"Invalid input: {wrong}.")
        kept = self._forbidden(context, hints)
        if kept is not None:
            raise webob.exc.HTTPForbidden(explanation=f"{kept}.")

    def _forbidden(self, context: Any, hints: wait_policy.Hints) -> str | None:
        asked = []
        if wait_policy.WAIT_HINT in hints:
            asked.append((wait_policy.WAIT_HINT, WAIT_RULE))
        if wait_policy.CLASS_HINT in hints:
            name = wait_policy.class_hint(hints)
            asked.append((wait_policy.CLASS_HINT, f"{CLASS_RULE}{name}"))
        for hint, rule in asked:
            if not nova.policy.authorize(context, rule, do_raise=False):
                return f"Policy doesn't allow hint {hint} ({rule})"
        return None

    # -- straight into the queue ---------------------------------------------------------

    def put(self, context: Any, arguments: request_payload.BuildArguments) -> bool:
        """Put a request into the queue; False where a conductor is to have it, as in Nova.

        A request for which the queue is full is a conductor's, too: its scheduler knows exactly
        who waits, and finds room for it or ends it, with that reason.

        Blocks for the back end: for its time-out at most, or while the queue is counted.
        """
        if self._records is None:
            return False
        try:
            terms = request_records.terms(arguments, self._settings)
            if terms is None or self._clock() < self._away_until:
                return False
            self._open()
            request = self._records.newcomer(arguments, terms)
            # An attempt that nobody makes: the next one is a scheduler's to begin. It counts
            # as one that waits while it is tried, too.
            request = attrs.evolve(
                request, state=pending.PendingState.WAITING, parked_at=request.asked_at
            )
            return self._create(context, arguments, request)
        except errors.NodbError as error:
            self._is_away(error)
            return False
        except Exception:
            LOG.exception("A request could not be put into the queue")
            return False

    def _create(
        self,
        context: Any,
        arguments: request_payload.BuildArguments,
        request: pending.PendingRequest,
    ) -> bool:
        assert self._records is not None
        full = self._backlog.admit(request)
        if full is not None:
            LOG.info(
                "Request %(key)s goes to a conductor: %(full)s",
                {"key": request.key, "full": newcomer_gate.full_text(full)},
            )
            return False
        # Whatever is not known to have failed may stand, and counts until it is looked for.
        is_kept = True
        try:
            created = self._records.create(context, arguments, request)
            # In doubt: a conductor that finds it there leaves it alone.
            is_queued = isinstance(created, pending.PendingRequest)
            is_kept = not isinstance(created, pending_rules.Superseded)
            return is_queued
        except (errors.BackendUnavailable, errors.PayloadTooLarge):
            is_kept = False
            raise
        finally:
            self._backlog.settle(request, is_kept=is_kept)

    def _open(self) -> None:
        with self._lock:
            if not self._is_open:
                self._synchronizer.open()
                self._is_open = True

    def _is_away(self, error: errors.NodbError) -> None:
        self._away_until = self._clock() + _AWAY_SECONDS
        LOG.warning(
            "Requests go to conductors for %(seconds).0f s: %(error)s",
            {"seconds": _AWAY_SECONDS, "error": error},
        )

    # -- deletions ---------------------------------------------------------------------

    def deleted(self, server: str) -> None:
        """Take a server out of its request, some time soon; never blocks, never raises.

        Best effort: a request that is tried finds out by itself, and so do schedulers.
        """
        with contextlib.suppress(queue.Full):
            self._deleted.put_nowait(server)
            self._ensure_thread()

    def drain(self) -> None:
        """Do what the thread has to do now, in the calling one."""
        while True:
            try:
                server = self._deleted.get_nowait()
            except queue.Empty:
                return
            if server is not None:
                self._drop(server)

    def stop(self) -> None:
        """End the thread and close the back end; idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(queue.Full):
                self._deleted.put_nowait(None)
            thread.join(_JOIN_SECONDS)
        self._synchronizer.close()

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="nodb-pending-deletions", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while (server := self._deleted.get()) is not None:
            self._drop(server)

    def _drop(self, server: str) -> None:
        if self._clock() < self._away_until:
            return
        try:
            self._open()
            # A request is named by its first server; others of it are found gone later.
            self._ledger.drop_server(server, server)
        except errors.NodbError as error:
            self._is_away(error)
        except Exception:
            LOG.exception("Server %(server)s stays in its request", {"server": server})


# -- in Nova's place -----------------------------------------------------------------------


def install(api: WaitingApi) -> Callable[[], None]:
    """Have this process's Nova API ask this one; returns what takes it back."""
    # Imported late: it takes a quarter of a second, and schedulers import this module.
    from nova.compute import api as nova_compute

    places = [
        (nova_compute.API, "create", functools.partial(_checked, api)),
        (nova_compute.API, "_delete_while_booting", functools.partial(_heard, api)),
        (
            nova.conductor.api.ComputeTaskAPI,
            "schedule_and_build_instances",
            functools.partial(_queued, api),
        ),
        (nova.policy, "register_rules", functools.partial(_with_rules, api)),
    ]
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, wrap in places:
        setattr(owner, name, wrap(getattr(owner, name)))
    if nova.policy._ENFORCER is not None:
        # Nova has read its policy already.
        nova.policy._ENFORCER.register_defaults(rules(api._settings))
        nova.policy._ENFORCER.load_rules(True)

    def undo() -> None:
        for owner, name, function in former:
            setattr(owner, name, function)

    return undo


def _checked(api: WaitingApi, create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def checked(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        api.check(context, kwargs.get("scheduler_hints") or {})
        return create(self, context, *args, **kwargs)

    return checked


def _heard(api: WaitingApi, delete: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(delete)
    def heard(self: Any, context: Any, instance: Any) -> Any:
        # True where its build request was there, which no conductor finds any more.
        deleted = delete(self, context, instance)
        if deleted:
            api.deleted(instance.uuid)
        return deleted

    return heard


def _queued(api: WaitingApi, build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def queued(
        self: Any,
        context: Any,
        build_requests: Any,
        request_spec: Any,
        image: Any,
        admin_password: Any,
        injected_files: Any,
        requested_networks: Any,
        block_device_mapping: Any,
        tags: Any = None,
    ) -> None:
        arguments = request_payload.BuildArguments(
            request_spec,
            image,
            admin_password,
            injected_files,
            requested_networks,
            block_device_mapping,
            tags,
        )
        if not api.put(context, arguments):
            build(
                self,
                context,
                build_requests,
                request_spec,
                image,
                admin_password,
                injected_files,
                requested_networks,
                block_device_mapping,
                tags,
            )

    return queued


def _with_rules(api: WaitingApi, register: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(register)
    def registered(enforcer: Any) -> None:
        register(enforcer)
        enforcer.register_defaults(rules(api._settings))

    return registered
