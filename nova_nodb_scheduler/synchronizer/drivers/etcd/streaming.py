# SPDX-License-Identifier: Apache-2.0
"""One watch of etcd, read line by line from a connection of its own.

etcd3gw's watcher falls silent where etcd ends the watch (a compaction) or the
server dies. Here every line is looked at, the end of the stream is an error,
and a stream that brings nothing for too long is one, too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import certifi

from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout
from nova_nodb_scheduler.synchronizer.drivers.etcd import options as options_module

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
        self._http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
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
