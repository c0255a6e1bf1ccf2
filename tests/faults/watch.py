# SPDX-License-Identifier: Apache-2.0
"""Asks every scheduler, all the time, which cells it can prove and where it left memory."""

import collections
import threading
import time
from collections.abc import Mapping

import attrs
import oslo_messaging
from oslo_config import cfg

from nova_nodb_scheduler.rpc import api, client
from nova_nodb_scheduler.wire import objects
from tools.stack import configuration
from tools.stack import settings as stack_settings

_TOPIC = "nodb_scheduler"
_EXCHANGE = "nova"
_ADMIN = {"is_admin": True, "user_id": None, "project_id": None, "roles": ["admin"]}
_PAUSE_SECONDS = 0.5
_MIRRORED = ("compute_nodes", "services", "instances", "migrations", "aggregates", "host_mappings")
_CALL_SECONDS = 8.0


@attrs.frozen
class Seen:
    """One scheduler's answer. ``missing`` holds the unproved scopes, and why."""

    at: float
    worker: str
    pid: int
    missing: Mapping[str, str]
    fallbacks: Mapping[str, int]
    records: Mapping[str, int]


class _Serializer(objects.Serializer):
    """Sends a context as it is: what Nova's own makes of it, a dictionary, is given already."""

    def serialize_context(self, context: dict[str, object]) -> dict[str, object]:
        return context


class Watch:
    """One thread per scheduler; a scheduler that does not answer leaves a gap, no error.

    :param names: of scopes (uuids of cells), for people
    """

    def __init__(self, settings: stack_settings.Settings, names: Mapping[str, str]) -> None:
        self._settings = settings
        self._names = names
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}
        self._first_missing: dict[tuple[str, str], float] = {}
        self._base: dict[str, Mapping[str, int]] = {}
        self._last: dict[str, Mapping[str, int]] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._ask, args=(settings.host_of(name),), name=f"watch-{name}", daemon=True
            )
            for name in settings.scheduler_names
        ]

    def __enter__(self) -> "Watch":
        cfg.CONF([], project="nova-nodb-faults", default_config_files=[])
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * _CALL_SECONDS)

    def begin(self) -> None:
        """Count and note from now on."""
        with self._lock:
            self._first_missing = {}
            self._base = dict(self._last)

    def begin_noticing(self) -> None:
        """Note from now on what is not proved; the counting goes on."""
        with self._lock:
            self._first_missing = {}

    def fallbacks(self) -> dict[str, int]:
        """Requests that left memory since ``begin``, by reason.

        What a killed scheduler counted after its last answer is not in it.
        """
        found: collections.Counter[str] = collections.Counter()
        with self._lock:
            for worker, counts in self._last.items():
                found.update(counts)
                found.subtract(self._base.get(worker, {}))
        return {reason: count for reason, count in sorted(found.items()) if count > 0}

    def noticed(self) -> dict[tuple[str, str], float]:
        """When each scope was first seen unproved for a reason since ``begin`` (monotonic)."""
        with self._lock:
            return dict(self._first_missing)

    def missing(self, since: float) -> dict[str, str] | None:
        """What is not served from memory, and why; None while a scheduler gave no answer since."""
        with self._lock:
            hosts = [self._settings.host_of(name) for name in self._settings.scheduler_names]
            if not all(host in self._seen and self._seen[host].at > since for host in hosts):
                return None
            return {
                f"{scope} in {host}": reason
                for host in hosts
                for scope, reason in self._seen[host].missing.items()
            }

    def records(self) -> dict[str, Mapping[str, int]]:
        """Records of Nova's tables in each scheduler's store, by namespace, as last told."""
        with self._lock:
            return {
                host: {name: seen.records.get(name, 0) for name in _MIRRORED}
                for host, seen in self._seen.items()
            }

    def _transport(self) -> oslo_messaging.Transport:
        # The tracing of oslo.messaging knows the global configuration only.
        conf = cfg.CONF
        oslo_messaging.set_transport_defaults(_EXCHANGE)
        url = configuration.transport_url(self._settings, "nova-manage", "")
        exceptions = list(api.EXCEPTION_MODULES)
        return oslo_messaging.get_rpc_transport(conf, url=url, allowed_remote_exmods=exceptions)

    def _ask(self, host: str) -> None:
        schedulers = client.Client(self._transport(), _TOPIC, _Serializer(), _CALL_SECONDS)
        while not self._stop.wait(_PAUSE_SECONDS):
            begun = time.monotonic()
            try:
                status = schedulers.get_status(_ADMIN, server=host)
            except Exception:
                continue
            self._note(host, begun, status)

    def _note(self, host: str, begun: float, status: objects.SchedulerStatus) -> None:
        missing = {
            self._names.get(scope.scope, scope.scope): scope.reason
            for scope in status.scopes
            if not scope.proved
        }
        with self._lock:
            self._seen[host] = Seen(
                begun, status.worker, status.pid, missing, status.fallbacks, status.records
            )
            self._last[status.worker] = dict(status.fallbacks)
            for scope, reason in missing.items():
                self._first_missing.setdefault((scope, reason), time.monotonic())
