# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process, and Nova's report client that may lose answers."""

from __future__ import annotations

import collections
import json
import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fixtures
import keystoneauth1.session
import requests
import testtools
from keystoneauth1 import adapter, session, token_endpoint
from keystoneauth1 import exceptions as keystone
from nova.scheduler.client import report
from oslo_db import exception as db_exception
from placement import exception
from placement.handlers import allocation as handler
from placement.objects import allocation
from placement.tests.functional.fixtures import placement as placement_fixture
from requests import adapters

from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_replies
from tests.functional.nova_adapter.placement import prepared_placement

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
        self.faults: dict[str, list[Fault | None]] = {"get": [], "post": [], "put": []}

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

    def put(self, *args: Any, **kwargs: Any) -> Any:
        # Not counted: tests count what is read, and what is written for several servers.
        fault = self.faults["put"].pop(0) if self.faults["put"] else None
        own = super().put
        return own(*args, **kwargs) if fault is None else fault(lambda: own(*args, **kwargs))


class PlacementCase(testtools.TestCase):
    """Some providers with VCPU and MEMORY_MB, and a client."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(prepared_placement.PreparedPlacement())
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
        prepared_placement.make_provider(name, totals)
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

    def put(self, server: placement_replies.NewServer, generation: int | None = None) -> Any:
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


def server(
    provider: str, consumer: str | None = None, **amounts: int
) -> placement_replies.NewServer:
    """A new server on a provider, of one VCPU where nothing else is said."""
    return placement_replies.NewServer(
        consumer=consumer or str(uuid.uuid4()),
        request={
            "allocations": {provider: {"resources": amounts or {"VCPU": 1}}},
            "mappings": {"": [provider]},
        },
        project_id="project",
        user_id="user",
    )


def kinds(
    servers: Sequence[placement_replies.NewServer],
    found: Mapping[str, placement_replies.WriteOutcome],
) -> list[type[Any]]:
    """The kinds of outcome, in the order of the servers."""
    return [type(found[each.consumer]) for each in servers]


# -- faults -------------------------------------------------------------------------


def lost_before(error: type[Exception]) -> Fault:
    """The call does not get there."""

    def fault(call: Callable[[], Any]) -> Any:
        raise error

    return fault


def lost_after(error: type[Exception]) -> Fault:
    """The call gets there, the answer does not come back."""

    def fault(call: Callable[[], Any]) -> Any:
        call()
        raise error

    return fault


def _gateway(status: int) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response._content = b"<html>no answer from upstream</html>"
    return response


def _status_before(call: Callable[[], Any]) -> Any:
    return _gateway(503)


def _status_after(call: Callable[[], Any]) -> Any:
    call()
    return _gateway(504)


def without_text(call: Callable[[], Any]) -> Any:
    """The answer comes without what a person would read."""
    response = call()
    if response.status_code >= 400:
        body = response.json()
        body["errors"][0]["detail"] = "Conflict"
        response._content = json.dumps(body).encode()
    return response


def broken_off(call: Callable[[], Any]) -> Any:
    """Placement itself answers that it failed."""
    response = _gateway(500)
    error = {"status": 500, "detail": "broken", "code": "placement.undefined_code"}
    response._content = json.dumps({"errors": [error]}).encode()
    return response


BEFORE: tuple[Fault, ...] = (
    lost_before(keystone.ConnectFailure),
    lost_before(keystone.ConnectTimeout),
    _status_before,
)
AFTER: tuple[Fault, ...] = (
    lost_after(keystone.ConnectFailure),
    lost_after(keystone.ConnectTimeout),
    _status_after,
)


class ProvidersChange(fixtures.Fixture):
    """Other writers change the providers while Placement writes, the first few times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def _setUp(self) -> None:
        own = allocation._set_allocations

        def changed(*args: Any, **kwargs: Any) -> Any:
            if self._left:
                # As often as Placement itself tries again.
                raise exception.ResourceProviderConcurrentUpdateDetected
            return own(*args, **kwargs)

        own_replace = allocation.replace_all

        def replace_all(*args: Any, **kwargs: Any) -> Any:
            try:
                return own_replace(*args, **kwargs)
            finally:
                self._left = max(0, self._left - 1)

        self.useFixture(fixtures.MonkeyPatch(f"{allocation.__name__}._set_allocations", changed))
        self.useFixture(fixtures.MonkeyPatch(f"{allocation.__name__}.replace_all", replace_all))


class ProvidersChangeAtTimes(fixtures.Fixture):
    """The same, at random."""

    def __init__(self, rng: random.Random, share: float) -> None:
        super().__init__()
        self._rng, self._share = rng, share

    def _setUp(self) -> None:
        own = allocation.replace_all

        def replace_all(*args: Any, **kwargs: Any) -> Any:
            if self._rng.random() < self._share:
                raise exception.ResourceProviderConcurrentUpdateDetected
            return own(*args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(f"{allocation.__name__}.replace_all", replace_all))


class PlacementBreaks(fixtures.Fixture):
    """Placement loses its database while it writes, the first few times.

    It answers 500 then, and can take nothing back.
    """

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def _setUp(self) -> None:
        own = handler.delete_consumers
        own_replace = allocation.replace_all

        def replace_all(*args: Any, **kwargs: Any) -> Any:
            if self._left:
                raise db_exception.DBConnectionError
            return own_replace(*args, **kwargs)

        def delete_consumers(*args: Any, **kwargs: Any) -> Any:
            if self._left:
                self._left -= 1
                return None
            return own(*args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(f"{allocation.__name__}.replace_all", replace_all))
        self.useFixture(
            fixtures.MonkeyPatch(f"{handler.__name__}.delete_consumers", delete_consumers)
        )
