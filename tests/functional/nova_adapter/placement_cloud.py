# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process, and Nova's report client that may lose answers."""

from __future__ import annotations

import collections
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fixtures
import keystoneauth1.session
import testtools
from keystoneauth1 import adapter, session, token_endpoint
from nova.scheduler.client import report
from placement.tests.functional.fixtures import placement as placement_fixture
from requests import adapters

from nova_nodb_scheduler.nova_adapter.placement import outcomes

#: What a fault does: it gets the call that would be made, and may make it.
Fault = Callable[[Callable[[], Any]], Any]


class Client(report.SchedulerReportClient):
    """Nova's report client; calls are counted, one at a time, and may meet a fault."""

    def __init__(self, endpoint: str) -> None:
        auth = token_endpoint.Token(endpoint, "admin")
        super().__init__(
            adapter.Adapter(
                session.Session(auth=auth),
                service_type="placement",
                endpoint_override=endpoint,
                raise_exc=False,
            )
        )
        # SQLite in memory is one connection for all threads.
        self._one_at_a_time = threading.Lock()
        self.calls: collections.Counter[str] = collections.Counter()
        self.sizes: list[int] = []
        #: Taken one by one, by the method's name.
        self.faults: dict[str, list[Fault | None]] = {"get": [], "post": []}

    def _meet(self, name: str, call: Callable[[], Any]) -> Any:
        with self._one_at_a_time:
            self.calls[name] += 1
            fault = self.faults[name].pop(0) if self.faults[name] else None
            return call() if fault is None else fault(call)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        own = super().get
        return self._meet("get", lambda: own(*args, **kwargs))

    def post(self, url: str, data: Any, *args: Any, **kwargs: Any) -> Any:
        own = super().post
        self.sizes.append(len(data))
        return self._meet("post", lambda: own(url, data, *args, **kwargs))


class PlacementCase(testtools.TestCase):
    """Some providers with VCPU and MEMORY_MB, and a client."""

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placement_fixture.PlacementFixture())
        # What turns socket options on does not know intercepted connections.
        self.useFixture(
            fixtures.MonkeyPatch(
                "keystoneauth1.session.TCPKeepAliveAdapter.init_poolmanager",
                adapters.HTTPAdapter.init_poolmanager,
            )
        )
        self.assertTrue(keystoneauth1.session.TCPKeepAliveAdapter)
        #: For the test itself; what is under test has one of its own.
        self.admin = Client(self.placement.endpoint)

    def provider(self, **totals: int) -> str:
        """Make a provider with inventories of these totals; return its uuid."""
        name = str(uuid.uuid4())
        made = self.admin.post("/resource_providers", {"name": name, "uuid": name}, version="1.20")
        self.assertEqual(200, made.status_code, made.text)
        self.set_inventory(name, **totals)
        return name

    def set_inventory(self, provider: str, **totals: int) -> None:
        url = f"/resource_providers/{provider}"
        generation = self.admin.get(url).json()["generation"]
        inventories = {name: {"total": total} for name, total in totals.items()}
        done = self.admin.put(
            f"{url}/inventories",
            {"resource_provider_generation": generation, "inventories": inventories},
            version="1.26",
        )
        self.assertEqual(200, done.status_code, done.text)

    def usages(self, provider: str) -> Mapping[str, int]:
        """What Placement counts as used, zeros left out."""
        answer = self.admin.get(f"/resource_providers/{provider}/usages").json()
        return {name: used for name, used in answer["usages"].items() if used}

    def consumers(self, provider: str) -> Mapping[str, Mapping[str, int]]:
        """What Placement has on a provider, by consumer."""
        answer = self.admin.get(
            f"/resource_providers/{provider}/allocations", version="1.28"
        ).json()
        return {name: held["resources"] for name, held in answer["allocations"].items()}

    def held(self, consumer: str) -> Mapping[str, Mapping[str, int]]:
        answer = self.admin.get(f"/allocations/{consumer}", version="1.36").json()
        return {name: part["resources"] for name, part in answer["allocations"].items()}

    def put(self, server: outcomes.Server, generation: int | None = None) -> Any:
        """Write a server's allocation as stock Nova does."""
        return self.admin.put(
            f"/allocations/{server.consumer}",
            {
                **server.request,
                "project_id": server.project_id,
                "user_id": server.user_id,
                "consumer_generation": generation,
            },
            version="1.36",
        )


def server(provider: str, consumer: str | None = None, **amounts: int) -> outcomes.Server:
    """A new server on a provider, of one VCPU where nothing else is said."""
    return outcomes.Server(
        consumer=consumer or str(uuid.uuid4()),
        request={
            "allocations": {provider: {"resources": amounts or {"VCPU": 1}}},
            "mappings": {"": [provider]},
        },
        project_id="project",
        user_id="user",
    )


def kinds(
    servers: Sequence[outcomes.Server], found: Mapping[str, outcomes.Outcome]
) -> list[type[Any]]:
    """The kinds of outcome, in the order of the servers."""
    return [type(found[each.consumer]) for each in servers]
