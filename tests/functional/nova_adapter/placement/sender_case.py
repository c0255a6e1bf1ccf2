# SPDX-License-Identifier: Apache-2.0
"""What reads and writes Placement, over one session to a server that says what a test wants."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import Any

import testtools
from keystoneauth1 import adapter, plugin, session
from keystoneauth1 import exceptions as keystone
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement import repeated_requests
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.placement import raw_http

VERSION = "1.36"


class Tokens(plugin.BaseAuthPlugin):
    """Gives a token until it is said to be over; then the next, with the endpoint of then."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.catalogue = self.known = endpoint
        self.number = 1
        self.made = 0
        self.answers = True

    def get_token(self, _session: Any) -> str:
        if not self.answers:
            raise keystone.ConnectFailure("keystone is away")
        return f"token-{self.number}"

    def get_endpoint(self, _session: Any, **_: Any) -> str:
        return self.known

    def invalidate(self) -> bool:
        with self._lock:
            self.number += 1
            self.made += 1
            self.known = self.catalogue
        return True


class SenderCase(testtools.TestCase):
    """Both senders over one session, to a server that says what a test wants."""

    tls: ssl.SSLContext | None = None
    verify: Any = True

    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        self.server = self.serve()
        self.auth = Tokens(self.server.url + "/placement")
        self.valid: Callable[[str], bool] = lambda _token: True
        self.next: list[raw_http.Answer] = []
        self._lock = threading.Lock()
        own = session.Session(auth=self.auth, verify=self.verify, timeout=10)
        self.addCleanup(own.session.close)
        self.client = report.SchedulerReportClient(
            adapter.Adapter(own, service_type="placement", raise_exc=False)
        )
        self.reader = repeated_requests.GetSender(lambda: self.client)
        self.writer = placement_calls.PostSender(self.client)

    def serve(self) -> raw_http.RawServer:
        made = raw_http.RawServer(self.respond, self.tls)
        self.addCleanup(made.close)
        return made

    def respond(self, asked: raw_http.Asked) -> raw_http.Answer:
        if not self.valid(asked.headers["X-Auth-Token"]):
            return raw_http.answer(401), True
        with self._lock:
            if self.next:
                return self.next.pop(0)
        if asked.line.startswith("POST"):
            return raw_http.answer(204), True
        # Whose answer it is.
        return raw_http.answer(200, asked.target.encode()), True

    def get(self, name: str) -> Any:
        return self.reader.get(f"/resource_providers?in_tree={name}", VERSION)

    def post(self, name: str) -> Any:
        return self.writer.post(
            "/allocations", {name: name}, version=VERSION, request_id=f"req-{name}"
        )

    def repeat(self, name: str = "first") -> None:
        """Have both senders learn how, and repeat it."""
        for _ in range(2):
            self.assertEqual(200, self.get(name).status_code)
            self.assertEqual(204, self.post(name).status_code)
