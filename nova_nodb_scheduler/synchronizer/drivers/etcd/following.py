# SPDX-License-Identifier: Apache-2.0
"""The feed: a thread reads one watch line by line into a buffer, fetches are served from it.

To ask etcd for what changed since a revision, without a watch, means to read
every record: ``min_mod_revision`` is a filter, not an index. And a watch that is
made for each fetch brings its first event only after up to 100 ms, the interval
at which etcd serves watches that begin in the past. So one watch stays, on a
connection of its own, and a fetch reads etcd's head and waits until the watch
has brought all up to it. That wait is also what keeps the watch honest: one that
does not come to the head in time is broken off and made again where it stood,
which loses nothing. A watcher that waits for the next message, as etcd3gw's
does, falls silent where etcd ends the watch (a compaction) or the server dies;
here the end of the stream is an error, and so is one that brings nothing for too
long.

A cursor from before the buffer makes the watch begin anew at the cursor, so
the same fetch brings the same again, as long as etcd keeps the history.
"""

from __future__ import annotations

import bisect
import contextlib
import enum
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import certifi
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout
from nova_nodb_scheduler.synchronizer.drivers.etcd import options as options_module
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base

LOG = log.getLogger(__name__)

#: Silence of a watch for longer than this is not believed. Every follower
#: writes a canary more often.
QUIET_SECONDS = 60.0

#: A large transaction's events stand in one line.
_MAX_LINE_BYTES = 1 << 30

Message = Mapping[str, Any]


class Stream:
    """Yields the messages of one watch; closed from any thread."""

    def __init__(
        self, settings: options_module.EtcdOptions, connection: connection_module.Connection
    ) -> None:
        self._timeout_seconds = settings.timeout_seconds
        self.endpoint = connection.preferred
        self._token = connection.token
        self._http = _http_connection(self.endpoint, settings)
        self._socket: socket.socket | None = None
        self._is_closed = False

    def messages(self, prefix: bytes, start_revision: int) -> Iterator[Message]:
        """Watch all puts below a prefix from a revision on.

        The first message says ``created``; ends only by raising.

        :raises OSError, http.client.HTTPException, ValueError: the stream broke
        :raises Failure: etcd refuses it, or ended it for an error
        """
        request = {
            "create_request": {
                "key": layout.encode(prefix),
                "range_end": layout.encode(layout.past(prefix)),
                "start_revision": str(start_revision),
                # Keys are deleted by collection only, of which the floor tells.
                "filters": ["NODELETE"],
                "progress_notify": True,
                "fragment": True,
            }
        }
        # Without it a watch on a member that is cut off from the others waits for ever.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self._token:
            headers["Authorization"] = self._token
        self._http.connect()
        self._socket = self._http.sock
        if self._is_closed:
            raise ConnectionAbortedError("the watch was closed")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._http.request("POST", "/v3/watch", json.dumps(request), headers)
        response = self._http.getresponse()
        if response.status != http.client.OK:
            raise failures.of_answer(response.read(4096).decode(errors="replace"))
        while line := response.readline(_MAX_LINE_BYTES):
            message = json.loads(line)
            if "error" in message:
                raise _failure(message["error"])
            result = message["result"]
            if result.get("created"):
                self._socket.settimeout(QUIET_SECONDS)
            yield result
        raise ConnectionResetError("etcd ended the watch")

    def close(self) -> None:
        """Break the stream off; who reads it gets an error. Idempotent."""
        self._is_closed = True
        if self._socket is not None:
            # close() alone does not wake a thread that waits in recv().
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the socket back; for the thread that has read from it."""
        self._http.close()


def _http_connection(
    endpoint: options_module.Endpoint, settings: options_module.EtcdOptions
) -> http.client.HTTPConnection:
    timeout = settings.timeout_seconds
    if endpoint.scheme == "http":
        return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
    context = ssl.create_default_context(cafile=settings.tls_cafile or certifi.where())
    if settings.tls_certfile:
        context.load_cert_chain(settings.tls_certfile, settings.tls_keyfile)
    return http.client.HTTPSConnection(
        endpoint.host, endpoint.port, timeout=timeout, context=context
    )


def _failure(error: Mapping[str, Any]) -> failures.Failure:
    """Translate the gateway's error within a stream, which has other names."""
    code = int(error.get("grpc_code", error.get("code", 2)))
    return failures.of_status(code, str(error.get("message", error)))


#: Fetched records that are kept, to be fetched again.
KEPT_RECORDS = 2000
KEPT_BYTES = 32 * 1024 * 1024
#: Unfetched ones, before the watch is read on; each may have a megabyte.
BUFFERED_RECORDS = 20_000
BUFFERED_BYTES = 128 * 1024 * 1024

RETRY_MIN_SECONDS, RETRY_MAX_SECONDS = 0.05, 1.0
JOIN_SECONDS = 5.0

_BROKEN = (
    OSError,
    http.client.HTTPException,
    ValueError,
    failures.Failure,
    errors.BackendUnavailable,
)


class End(enum.Enum):
    """Why a watch cannot go on."""

    EPOCH = records.ResyncReason.EPOCH_CHANGED
    COMPACTED = records.ResyncReason.HISTORY_TRUNCATED


class Feed:
    """What changed in the epoch in force; any thread may call.

    All between ``_begin`` and ``_position`` that was written in ``_epoch`` is
    in ``_records``, in the order of its versions.
    """

    def __init__(
        self,
        keys: layout.Layout,
        connection: connection_module.Connection,
        make_stream: Callable[[], Stream],
        timeout_seconds: float,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._make_stream = make_stream
        self._timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._is_open = False
        self._stream: Stream | None = None
        self._endpoint = connection.preferred
        self._is_watching = False
        #: Monotonic seconds when the present watch was made.
        self._watching_since = 0.0
        self._failures = 0
        self._trouble = ""
        #: How often a watch was made, for statistics.
        self.watches = 0
        self._generation = 0
        self._epoch: layout.Epoch | None = None
        self._end: End | None = None
        self._begin = self._position = 0
        self._resume_at = 0
        self._records: list[records.Record] = []
        self._bytes = 0
        #: Records of a revision that is not complete yet.
        self._partial: list[records.Record] = []

    def fetch(
        self, meta: epochs_module.Meta, version: int, limit: int
    ) -> records.Changes | records.ResyncNeeded:
        """Return what was written after a version of the epoch, up to the head at least.

        :raises BackendUnavailable: the watch does not come to the head in time
        """
        asked_at = time.monotonic()
        deadline, patience = asked_at + self._timeout_seconds, self._timeout_seconds / 4
        with self._changed:
            generation = -1
            while True:
                if self._generation != generation or self._begin > version:
                    # To begin with; and another reader may have begun anew
                    # elsewhere, or have had forgotten what was not fetched here.
                    self._follow_from(meta, version)
                    generation = self._generation
                self._forget_before(version)
                start = self._place_of(version)
                if (
                    self._position >= meta.head
                    or len(self._records) - start > limit
                    or self._is_full
                ):
                    return self._changes(version, start, limit)
                if self._end is not None:
                    return records.ResyncNeeded(self._end.value, self._trouble)
                now = time.monotonic()
                if self._thread is None or now >= deadline:
                    reason = self._trouble or "its watch does not bring what was written"
                    raise self._connection.unavailable(reason)
                # One that was made just now, after a pause, has its time too.
                late_at = max(asked_at, self._watching_since) + patience
                if self._is_watching and now >= late_at:
                    self._break_off("the watch was behind the head for too long")
                look_at = late_at if self._is_watching else now + patience
                self._changed.wait(min(deadline, look_at) - now)

    def is_watching(self, cursor: records.Cursor) -> bool:
        """Return whether :meth:`wait` would be told of what comes after a cursor."""
        with self._changed:
            return (
                self._is_watching
                and self._epoch is not None
                and self._epoch.cursor_name == cursor.epoch
                and self._begin <= cursor.version
            )

    def follow_from(self, meta: epochs_module.Meta, version: int) -> None:
        """Have what was written after a version of the epoch watched."""
        with self._changed:
            self._follow_from(meta, version)

    def wait(self, version: int, timeout_seconds: float) -> bool:
        """Block until something after a version came, or the watch ended for good."""
        with self._changed:
            generation = self._generation
            self._changed.wait_for(
                lambda: (
                    self._position > version
                    or self._end is not None
                    or self._thread is None
                    or self._generation != generation
                ),
                timeout_seconds,
            )
            return self._position > version or self._end is not None

    def open(self) -> None:
        """Let what is asked for be watched; idempotent."""
        with self._changed:
            self._is_open = True

    def close(self) -> None:
        """End the thread, which nobody starts again before :meth:`open`; idempotent."""
        with self._changed:
            self._is_open = False
            thread, self._thread = self._thread, None
            self._stopping.set()
            self._generation += 1
            self._break_off("")
            self._epoch = None
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    # -- the buffer; all of these with the lock held ----------------------------

    def _follow_from(self, meta: epochs_module.Meta, version: int) -> None:
        if not self._is_open:
            # It was closed since the head was asked for: nobody would end the thread.
            raise self._connection.unavailable("this client is closed")
        covered = self._epoch == meta.epoch and self._end is None and self._begin <= version
        if not covered:
            self._generation += 1
            self._epoch, self._end, self._trouble = meta.epoch, None, ""
            self._begin = self._position = version
            # Inclusive: there may be more of the revision in which it stands.
            # At the head nothing of ours was written since, and a compaction
            # among what others wrote must not look like a loss.
            at_head = version == meta.head
            revision = meta.store_revision + 1 if at_head else version >> layout.PLACE_BITS
            self._resume_at = max(1, revision)
            self._records, self._partial, self._bytes = [], [], 0
            self._failures = 0
            self._break_off("")
            self._changed.notify_all()
        if self._thread is None:
            self._stopping = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping,), name="nodb-etcd-watch", daemon=True
            )
            self._thread.start()

    def _place_of(self, version: int) -> int:
        return bisect.bisect_right(self._records, version, key=lambda record: record.version)

    def _changes(self, version: int, start: int, limit: int) -> records.Changes:
        assert self._epoch is not None
        end = records.Cursor(self._epoch.cursor_name, max(version, self._position))
        found = self._records[start : start + limit]
        return driver_base.changes_of(found, end, more=len(self._records) > start + limit)

    def _forget_before(self, version: int) -> None:
        fetched, dropped = self._place_of(version), 0
        while dropped < fetched and (
            len(self._records) - dropped > KEPT_RECORDS or self._bytes > KEPT_BYTES
        ):
            self._begin = self._records[dropped].version
            self._bytes -= len(self._records[dropped].payload)
            dropped += 1
        if dropped:
            del self._records[:dropped]
            self._changed.notify_all()

    @property
    def _is_full(self) -> bool:
        return len(self._records) >= BUFFERED_RECORDS or self._bytes >= BUFFERED_BYTES

    def _break_off(self, why: str) -> None:
        self._is_watching = False
        if why:
            self._trouble = why
        if self._stream is not None:
            self._stream.close()

    # -- the thread --------------------------------------------------------------

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            with self._changed:
                if self._end is not None:
                    # Until a fetch begins anew from another cursor.
                    self._changed.wait(1.0)
                    continue
                generation = self._generation
            try:
                self._watch(generation)
            except _BROKEN as error:
                self._note_failure(generation, error)
            except Exception as error:  # a thread must not end in silence
                LOG.exception("The watch of %(label)s failed", {"label": self._connection.label})
                self._note_failure(generation, error)

    def _watch(self, generation: int) -> None:
        stream = self._make_stream()
        with self._changed:
            if generation != self._generation or self._stopping.is_set():
                return
            self._stream, self._partial = stream, []
            self._endpoint = stream.endpoint
            start = self._resume_at
            self.watches += 1
        try:
            for message in stream.messages(self._keys.prefix, start):
                if not self._take(generation, message):
                    return
        except failures.Failure as failure:
            if failure.kind is failures.Kind.UNAUTHENTICATED:
                self._connection.authenticate()
            raise
        finally:
            with self._changed:
                if self._stream is stream:
                    self._stream, self._is_watching = None, False
            stream.release()

    def _note_failure(self, generation: int, error: Exception) -> None:
        with self._changed:
            if generation != self._generation:
                return
            self._trouble = f"its watch broke: {' '.join(str(error).split())[:300]}"
            pause = min(RETRY_MAX_SECONDS, RETRY_MIN_SECONDS * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            if self._failures > 1:
                self._connection.avoid(self._endpoint)
                # A fetch or a restart of the watch does not wait for the pause.
                self._changed.wait_for(lambda: self._generation != generation, pause)

    def _take(self, generation: int, message: Message) -> bool:
        """Take one message into the buffer; False where the stream is to be left."""
        with self._changed:
            if generation != self._generation or self._epoch is None:
                return False
            header = message["header"]
            if message.get("canceled"):
                return self._canceled(message)
            if message.get("created"):
                if header["cluster_id"] != self._epoch.cluster:
                    return self._ended(End.EPOCH, f"cluster {header['cluster_id']} answers")
                self._is_watching, self._watching_since = True, time.monotonic()
                # Who waits for what it brings counts from now.
                self._changed.notify_all()
                return True
            self._failures = 0
            events = message.get("events", ())
            if not events:
                # Progress: all up to this revision has been brought, so that a
                # compaction below it does not harm when the watch is made anew.
                self._resume_at = max(self._resume_at, int(header["revision"]) + 1)
                return True
            for event in events:
                if not self._take_key(event["kv"]):
                    return False
            self._changed.notify_all()
            while self._is_full and generation == self._generation and self._thread is not None:
                self._changed.wait(1.0)
            return True

    def _take_key(self, held: layout.KeyValue) -> bool:
        epoch = self._epoch
        assert epoch is not None
        key = layout.key_of(held)
        revision = layout.mod_revision(held)
        if key == self._keys.head_key:
            self._complete(revision)
        elif key == self._keys.epoch_key:
            if revision > epoch.revision:
                return self._ended(End.EPOCH, "a new epoch began")
        elif key.startswith(self._keys.records_of(epoch.name)):
            record = self._keys.decode_record(epoch, held)
            if record.version > self._position:
                self._partial.append(record)
        return True

    def _complete(self, revision: int) -> None:
        """All of a revision is here: the head is put last."""
        self._records += self._partial
        self._bytes += sum(len(record.payload) for record in self._partial)
        self._partial = []
        self._position = max(self._position, layout.end_of(revision))
        self._resume_at = max(self._resume_at, revision + 1)

    def _canceled(self, message: Message) -> bool:
        compacted = int(message.get("compact_revision", 0))
        if compacted:
            return self._ended(End.COMPACTED, f"etcd was compacted at revision {compacted}")
        raise failures.of_status(2, message.get("cancel_reason") or "etcd canceled the watch")

    def _ended(self, end: End, why: str) -> bool:
        self._end, self._trouble, self._is_watching = end, why, False
        self._changed.notify_all()
        return False
