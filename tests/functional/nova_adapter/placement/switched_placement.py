# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process, whose guard can be switched, and answers lost, by request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import fixtures
from keystoneauth1 import adapter, session, token_endpoint
from nova.scheduler.client import report
from placement import deploy
from placement.tests.functional.fixtures import placement as placement_fixture
from requests import adapters

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.placement_adapter import guard_header, guard_switch

#: This release's guard; one that knows no conditions; and Placement's own application.
GUARDED, OLDER, PLAIN = "guarded", "older", "plain"

_ENVIRON = "HTTP_" + tree_conditions.REQUEST.upper().replace("-", "_")


@attrs.frozen
class Asked:
    """A request that arrived.

    :param condition: the trees that it names
    """

    method: str
    path: str
    condition: str | None
    status: str


class SwitchedPlacement(fixtures.Fixture):  # type: ignore[misc]
    """Placement's own fixture, with what stands before a cloud's processes of it.

    To be used within :class:`.prepared_placement.PreparedPlacement`. One request at a
    time: SQLite in memory is one connection.

    :ivar mode: which process answers: the guard's writes, but for what is said and compared
    :ivar before: called with method and path before a request is answered
    """

    def _setUp(self) -> None:
        self.mode = GUARDED
        self.asked: list[Asked] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        self._lock = threading.RLock()
        guard_switch.switch_on()
        self.addCleanup(guard_switch.switch_off)
        # The plugin wraps Nova's own methods here. Left so, they would have what another
        # fixture puts in their place look wrapped.
        for name in ("put", "post", "delete"):
            method = getattr(report.SchedulerReportClient, name)
            self.addCleanup(setattr, report.SchedulerReportClient, name, method)
        own = deploy.loadapp
        self.useFixture(
            fixtures.MonkeyPatch("placement.deploy.loadapp", lambda conf: self._switched(own(conf)))
        )
        self.endpoint = self.useFixture(placement_fixture.PlacementFixture()).endpoint
        # What turns socket options on does not know intercepted connections.
        self.useFixture(
            fixtures.MonkeyPatch(
                "keystoneauth1.session.TCPKeepAliveAdapter.init_poolmanager",
                adapters.HTTPAdapter.init_poolmanager,
            )
        )

    def client(self) -> report.SchedulerReportClient:
        """Return a client as Nova makes it, which repeats requests."""
        return report.SchedulerReportClient(
            adapter.Adapter(
                session.Session(auth=token_endpoint.Token(self.endpoint, "admin")),
                service_type="placement",
                endpoint_override=self.endpoint,
                raise_exc=False,
            )
        )

    def _switched(self, own: guard_header.Application) -> guard_header.Application:
        guarded = guard_header.added_to(own)

        def older(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
                return start_response(
                    status, [*headers, (guard_header.NAME, guard_header.VALUE)], *more
                )

            return own(environ, start)

        applications = {GUARDED: guarded, OLDER: older, PLAIN: own}

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            with self._lock:
                self.before(method, path)

                def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
                    query = environ.get("QUERY_STRING") or ""
                    self.asked.append(
                        Asked(
                            method,
                            f"{path}?{query}" if query else path,
                            environ.get(_ENVIRON),
                            status,
                        )
                    )
                    return start_response(status, headers, *more)

                return applications[self.mode](environ, start)

        return application
