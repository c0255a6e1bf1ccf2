# SPDX-License-Identifier: Apache-2.0
"""What etcd3gw sends its requests by: a pool of connections to one member.

It takes a session of ``requests``, whose own work was 1 ms of CPU for each
request here, as much as all that etcd did for it. This has the two methods
that are called of it, on the pool beneath ``requests``, which repeats nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import certifi
import orjson
import urllib3

from nova_nodb_scheduler.synchronizer.drivers.etcd import options as options_module

POOLED_CONNECTIONS = 64
AUTHENTICATE = "/auth/authenticate"


class Answer:
    """As much of a response of ``requests`` as etcd3gw looks at."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._body = response.data
        self.status_code = response.status
        self.reason = response.reason

    @property
    def text(self) -> str:
        return self._body.decode(errors="replace")

    def json(self) -> Any:
        return orjson.loads(self._body)


class Session:
    """Requests to one member; any thread may call.

    :param note: told the Date of each answer, and when request and answer
        passed (monotonic seconds)
    """

    def __init__(
        self,
        endpoint: options_module.Endpoint,
        settings: options_module.EtcdOptions,
        note: Callable[[str | None, float, float], None],
    ) -> None:
        self._url = str(endpoint)
        self._note = note
        self.token: str | None = None
        pool: dict[str, Any] = {"maxsize": POOLED_CONNECTIONS, "retries": False}
        if endpoint.scheme == "https":
            self._pool: urllib3.HTTPConnectionPool = urllib3.HTTPSConnectionPool(
                endpoint.host,
                endpoint.port,
                cert_reqs="CERT_REQUIRED",
                ca_certs=settings.tls_cafile or certifi.where(),
                cert_file=settings.tls_certfile,
                key_file=settings.tls_keyfile,
                **pool,
            )
        else:
            self._pool = urllib3.HTTPConnectionPool(endpoint.host, endpoint.port, **pool)

    def post(self, url: str, *, json: Any, timeout: float) -> Answer:
        """Send JSON; raises what urllib3 raises."""
        headers = {"Content-Type": "application/json"}
        # With an expired token etcd refuses to give a new one.
        if self.token is not None and not url.endswith(AUTHENTICATE):
            headers["Authorization"] = self.token
        return self._send("POST", url, orjson.dumps(json), headers, timeout)

    def get(self, url: str, *, timeout: float) -> Answer:
        """Get what stands there; raises what urllib3 raises."""
        return self._send("GET", url, None, {}, timeout)

    def close(self) -> None:
        """Drop idle connections; those in use end with their calls."""
        self._pool.close()

    def _send(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Answer:
        sent_at = time.monotonic()
        response = self._pool.urlopen(
            method,
            url.removeprefix(self._url),
            body,
            headers,
            timeout=timeout,
            redirect=False,
        )
        self._note(response.headers.get("Date"), sent_at, time.monotonic())
        return Answer(response)
