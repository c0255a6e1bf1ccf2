# SPDX-License-Identifier: Apache-2.0
"""The scheduler that lets requests wait: everything of nodb_scheduler, and who is tried when."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import oslo_messaging as messaging
from nova import exception as nova_exception

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter import activation, assembly, manager
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.synchronizer.settlement import pending_waits
from nova_nodb_scheduler.synchronizer.waking import newcomer_gate


class QueueSchedulerManager(manager.SchedulerManager):
    """``scheduler_driver = nodb_queue``. Constructor as Nova's; nothing runs before init_host."""

    def _runtime(self, plugin: assembly.Plugin) -> runtime_module.SchedulerRuntime:
        runtime = super()._runtime(plugin)
        heard = activation.notifications_are_heard(self.notifier)
        runtime.queue = plugin.queue(runtime, self.notifier if heard else None)
        return runtime

    @messaging.expected_exceptions(nova_exception.NoValidHost)  # type: ignore[untyped-decorator]
    def select_destinations(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Choose hosts, unless others wait for them that go before."""
        named = _take_hint(manager.given(args, kwargs))
        if named is None:
            return super().select_destinations(context, *args, **kwargs)
        admission = self._admit(*named)
        if admission.refusal:
            raise nova_exception.NoValidHost(reason=admission.refusal)
        try:
            # Its record waits for room, and what is held for it is nobody else's meanwhile.
            with contextlib.nullcontext() if admission.full else pending_waits.nobody_waits():
                return super().select_destinations(context, *args, **kwargs)
        except messaging.ExpectedException as wrapped:
            error = wrapped.exc_info[1]
            if not admission.full or not isinstance(error, nova_exception.NoValidHost):
                raise
            why = f"{error.kwargs.get('reason') or ''} {admission.full}".strip()
            raise nova_exception.NoValidHost(reason=why) from error

    def _admit(self, key: str, attempt: int) -> newcomer_gate.Admission:
        queue = self.nodb.queue
        assert queue is not None  # made with the runtime
        admission: newcomer_gate.Admission = queue.gate.ask(key, attempt)
        if attempt <= 1:
            queue.meter.newcomer(admission.answer)
        return admission


def _take_hint(given: Mapping[str, Any]) -> tuple[str, int] | None:
    """Take the queue's hint out of a request; return whose attempt it is, None for nobody's."""
    spec: Any = given.get("spec_obj")
    hints = spec.scheduler_hints if spec is not None and "scheduler_hints" in spec else None
    if not hints or pending.HINT not in hints:
        return None
    named = pending.read_hint(hints[pending.HINT])
    spec.scheduler_hints = {name: value for name, value in hints.items() if name != pending.HINT}
    spec.obj_reset_changes(["scheduler_hints"])
    return named
