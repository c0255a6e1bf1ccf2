# SPDX-License-Identifier: Apache-2.0
"""What update_host_states takes: bounds of a call, and of each record in it."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import column_layout
from nova_nodb_scheduler.wire import codec, decoded_sizes, objects

#: What the smallest back end (memcached: 250 bytes with its prefix) bears.
MAX_KEY_BYTES = 200
#: So much of a key, a field or a reason is told: a call may bring 1,000 errors.
_SHOWN = 200


@attrs.frozen
class UpdateLimits:
    """Bounds of the RPC API; each names the option that sets it in its errors."""

    records_per_update: int
    update_bytes: int
    updates_per_second: float
    page_size: int
    page_bytes: int = 4 * 1024 * 1024


class RateLimit:
    """So many calls a second, in a burst or evenly. Any thread."""

    def __init__(
        self, calls_per_second: float, option: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls_per_second = calls_per_second
        self._option = option
        self._clock = clock
        # Below one call a second the window is as long as one call takes.
        self._window_seconds = max(1.0, 1.0 / calls_per_second)
        self._lock = threading.Lock()
        self._taken: collections.deque[float] = collections.deque()

    def take(self, what: str) -> None:
        """Count a call.

        :raises LimitExceeded: there were too many; this one is not counted
        """
        now = self._clock()
        with self._lock:
            while self._taken and self._taken[0] <= now - self._window_seconds:
                self._taken.popleft()
            asked = (len(self._taken) + 1) / self._window_seconds
            if asked > self._calls_per_second:
                raise errors.LimitExceeded(what, asked, self._calls_per_second, self._option)
            self._taken.append(now)


@attrs.frozen
class ValidUpdate:
    """What may be written of a call, and why the rest may not.

    :param states: by key; None deletes the record
    """

    states: Mapping[records.RecordKey, Mapping[str, Any] | None]
    errors: Sequence[errors.InvalidRecord]


class UpdateValidation:
    """Checks updates before anything is written.

    :param protected: names of namespaces that only the plugin's own processes
        write, whoever asks
    """

    def __init__(
        self,
        declared: Collection[namespaces.Namespace],
        limits: UpdateLimits,
        protected: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layouts = {each.name: column_layout.ColumnLayout(each) for each in declared}
        self._limits = limits
        self._protected = frozenset(protected)
        self._rate = RateLimit(
            limits.updates_per_second, "[nodb_scheduler] rpc_max_updates_per_second", clock
        )

    def admit(self, owner: str, updates: Sequence[Any]) -> ValidUpdate:
        """Sort the records of a call.

        :raises LimitExceeded: too many calls, records or bytes
        :raises NotOwner: a namespace belongs to another
        :raises UnknownNamespace: a namespace is not declared
        :raises InvalidRecord: ``updates`` is no list, or something in it is
            no record at all, or nested too deeply
        """
        self._rate.take("the number of update_host_states calls a second")
        self._check_shape(updates)
        self._check_size(updates)
        for name in sorted({update.namespace for update in updates}):
            self._check_owner(name, owner)
        states: dict[records.RecordKey, Mapping[str, Any] | None] = {}
        found: list[errors.InvalidRecord] = []
        counted = collections.Counter((update.namespace, update.key) for update in updates)
        for update in updates:
            key = records.RecordKey(update.namespace, update.key)
            try:
                if counted[key.namespace, key.key] > 1:
                    raise errors.InvalidRecord(str(key), "key", "it occurs twice in the call")
                self._check_record(key, update.state)
            except errors.InvalidRecord as error:
                found.append(_short(error))
                continue
            states[key] = update.state
        return ValidUpdate(states, found)

    def _check_shape(self, updates: Any) -> None:
        if not isinstance(updates, (list, tuple)):
            raise errors.InvalidRecord("(all)", "records", "it is no list of HostStateUpdate")
        if len(updates) > self._limits.records_per_update:
            raise errors.LimitExceeded(
                "the number of records in one update_host_states call",
                len(updates),
                self._limits.records_per_update,
                "[nodb_scheduler] rpc_max_records_per_update",
            )
        for place, update in enumerate(updates):
            name = f"number {place}"
            if not isinstance(update, objects.HostStateUpdate):
                raise errors.InvalidRecord(
                    name, "(record)", f"a {type(update).__name__} is no HostStateUpdate"
                )
            for field in sorted(update.fields):
                if not update.obj_attr_is_set(field):
                    raise errors.InvalidRecord(name, field, "it is not set")

    def _check_size(self, updates: Sequence[objects.HostStateUpdate]) -> None:
        """Count what all states take decoded, before anything is done with them.

        A payload's own size says nothing: it is compressed.
        """
        most_bytes = self._limits.update_bytes
        size_bytes = 0
        for update in updates:
            name = f"{update.namespace[:_SHOWN]}/{update.key[:_SHOWN]}"
            try:
                for part in (update.namespace, update.key, update.state):
                    size_bytes += decoded_sizes.decoded_bytes(
                        part, most_bytes, decoded_sizes.MAX_DEPTH
                    )
            except decoded_sizes.TooDeep as error:
                raise errors.InvalidRecord(name, "(state)", str(error)) from error
            if size_bytes > most_bytes:
                raise errors.LimitExceeded(
                    "the number of decoded bytes in one update_host_states call",
                    size_bytes,
                    most_bytes,
                    "[nodb_scheduler] rpc_max_update_bytes",
                )

    def _check_owner(self, name: str, owner: str) -> None:
        known = self._layouts.get(name)
        if known is None:
            raise errors.UnknownNamespace(name[:_SHOWN], ", ".join(sorted(self._layouts)))
        true_owner = known.namespace.owner
        if true_owner != owner or name in self._protected:
            raise errors.NotOwner(name, true_owner, f"{owner} over RPC")

    def _check_record(self, key: records.RecordKey, state: Mapping[str, Any] | None) -> None:
        """Refuse what does not fit.

        :raises InvalidRecord: naming the field
        """
        fits = 0 < len(key.key.encode("utf-8", "replace")) <= MAX_KEY_BYTES
        if not fits or not key.key.isprintable():
            raise errors.InvalidRecord(
                str(key), "key", f"a key is 1 to {MAX_KEY_BYTES} bytes of printable text"
            )
        if state is None:
            return
        known = self._layouts[key.namespace]
        known.page([key.key], [state])
        codec.encode_text(state, known.namespace.schema, record=str(key))


def _short(error: errors.InvalidRecord) -> errors.InvalidRecord:
    return errors.InvalidRecord(
        error.record[: 2 * _SHOWN], error.field[:_SHOWN], error.reason[: 2 * _SHOWN]
    )
