# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process over a real MariaDB: its transactions race as they do there.

MariaDB's REPEATABLE READ is what Placement over-commits under. A transaction can
be held after it has read what is used, and before it writes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any
from unittest import mock

import fixtures
import sqlalchemy as sa
from keystoneauth1 import adapter, session, token_endpoint
from nova import context as nova_context
from nova.scheduler.client import report
from oslo_db.sqlalchemy import enginefacade
from placement import db_api, deploy
from placement.db.sqlalchemy import migration
from placement.objects import allocation, resource_class, trait
from placement.tests.functional.fixtures import placement as placement_fixture

from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import placement_cloud

#: How long anything that is waited for may take.
WAIT_SECONDS = 60.0


class _Placement(placement_fixture.PlacementFixture):
    """Placement's application over a database of its own."""

    def __init__(self, url: str) -> None:
        super().__init__(db=False)
        self._url = url

    def _configure_placement(self, conf_fixture: Any) -> None:
        conf_fixture.config(connection=self._url, group="placement_database")
        manager = enginefacade.transaction_context()
        manager.configure(connection=self._url, max_pool_size=40)
        self.addCleanup(db_api.placement_context_manager.patch_factory(manager))
        engine = db_api.get_placement_engine()
        self.addCleanup(engine.dispose)
        migration.create_schema(engine)
        for module, name in (
            (trait, "_TRAITS_SYNCED"),
            (resource_class, "_RESOURCE_CLASSES_SYNCED"),
        ):
            setattr(module, name, False)
            self.addCleanup(setattr, module, name, False)
        deploy.update_database(conf_fixture.conf)


class Client(report.SchedulerReportClient):
    """Nova's report client, one of each scheduler; calls are counted."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            adapter.Adapter(
                session.Session(auth=token_endpoint.Token(endpoint, "admin")),
                service_type="placement",
                endpoint_override=endpoint,
                raise_exc=False,
            )
        )


class Held:
    """A transaction that has read what is used, and waits before it writes."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.go_on = threading.Event()


class MariaDBPlacementCase(placement_cloud.PlacementCase):
    """Placement's own database is MariaDB's."""

    def setUp(self) -> None:
        # Not the parents' own, which have SQLite.
        super(placement_cloud.PlacementCase, self).setUp()
        database = self.useFixture(servers.MariaDB())
        self.placement = self.useFixture(_Placement(database.url))
        self.useFixture(
            fixtures.MonkeyPatch(
                "keystoneauth1.session.TCPKeepAliveAdapter.init_poolmanager",
                placement_cloud.adapters.HTTPAdapter.init_poolmanager,
            )
        )
        self.admin = Client(self.placement.endpoint)
        self.context = nova_context.RequestContext("user", "project", is_admin=True)
        self.assertEqual("mysql", db_api.get_placement_engine().dialect.name)
        with db_api.get_placement_engine().connect() as connection:
            level = connection.execute(sa.text("SELECT @@tx_isolation")).scalar_one()
        self.assertEqual("REPEATABLE-READ", level)

    def client(self) -> Client:
        return Client(self.placement.endpoint)

    @contextlib.contextmanager
    def transaction_held(self, consumer: str) -> Iterator[Held]:
        """Hold the first transaction that allocates for a consumer.

        It has read what is used, and so sees nothing that is written from now on; it
        holds no lock yet that would keep others from writing.
        """
        held = Held()
        own = allocation._delete_allocations_for_consumer

        def begun(context: Any, consumer_id: str) -> None:
            if consumer_id == consumer and not held.arrived.is_set():
                held.arrived.set()
                assert held.go_on.wait(WAIT_SECONDS), "nobody let it go on"
            own(context, consumer_id)

        with mock.patch.object(allocation, "_delete_allocations_for_consumer", begun):
            try:
                yield held
            finally:
                held.go_on.set()

    def together(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """Make calls at the same moment, each in a thread; return what each returned."""
        barrier = threading.Barrier(len(calls))

        def run(call: Callable[[], Any]) -> Any:
            barrier.wait(WAIT_SECONDS)
            return call()

        with futures.ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(run, calls, timeout=2 * WAIT_SECONDS))

    def started(self, call: Callable[[], Any]) -> futures.Future[Any]:
        """Start a call in a thread of its own."""
        pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(call)


def granting_anything() -> Any:
    """Let Placement grant what there is no room for, as it does where writes race."""

    def granted(_context: Any, allocs: Any, _before: Any) -> Any:
        return {each.resource_provider.uuid: each.resource_provider for each in allocs}

    return mock.patch.object(allocation, "_check_capacity_exceeded", granted)
