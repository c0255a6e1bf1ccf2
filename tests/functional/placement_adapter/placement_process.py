# SPDX-License-Identifier: Apache-2.0
"""Placement's application over a real database: in this process, and in others that race.

Each of those is a process as a WSGI server has: its own application, engine and
caches. They meet at a barrier before each round, and then write to the same
provider at once.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import fixtures
import webob
from oslo_config import cfg
from oslo_db.sqlalchemy import enginefacade
from placement import conf as placement_conf
from placement import db_api, deploy
from placement.db.sqlalchemy import migration
from placement.objects import resource_class, trait

from nova_nodb_scheduler.placement_adapter import guard_header, guard_switch

VERSION = "1.38"

#: How long processes wait for one another.
WAIT_SECONDS = 120.0

_spawned = multiprocessing.get_context("spawn")


def configuration(url: str) -> cfg.ConfigOpts:
    """Return Placement's configuration for a database, without authentication."""
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf.set_override("connection", url, group="placement_database")
    conf([], default_config_files=[])
    conf.set_override("auth_strategy", "noauth2", group="api")
    return conf


@attrs.frozen
class Answer:
    """What Placement answered."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str | None:
        """The code of the error, if it is one."""
        errors = self.body.get("errors") if isinstance(self.body, dict) else None
        return errors[0].get("code") if errors else None


class Application:
    """Placement's application, called without a network."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._application = guard_header.added_to(deploy.loadapp(conf))

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        version: str = VERSION,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        request = webob.Request.blank(path, method=method)
        request.headers.update(headers or {})
        request.headers["X-Auth-Token"] = "admin"
        request.headers["X-Roles"] = "admin,member,reader,service"
        request.headers["OpenStack-API-Version"] = f"placement {version}"
        if body is not None:
            request.body = json.dumps(body).encode()
            request.content_type = "application/json"
        response = request.get_response(self._application)
        parsed = json.loads(response.body) if response.body else None
        return Answer(response.status_int, parsed, dict(response.headers))

    def provider(self, **totals: int) -> str:
        """Make a provider with inventories of these totals; return its uuid."""
        name = str(uuid.uuid4())
        made = self.call("POST", "/resource_providers", {"name": name, "uuid": name})
        assert made.status == 200, made
        self.set_inventories(name, 0, totals)
        return name

    def set_inventories(self, provider: str, generation: int, totals: Mapping[str, int]) -> Answer:
        return self.call(
            "PUT",
            f"/resource_providers/{provider}/inventories",
            {
                "resource_provider_generation": generation,
                "inventories": {name: {"total": total} for name, total in totals.items()},
            },
        )

    def usages(self, provider: str) -> Mapping[str, int]:
        """What Placement counts as used, zeros left out."""
        answer = self.call("GET", f"/resource_providers/{provider}/usages")
        return {name: used for name, used in answer.body["usages"].items() if used}

    def generation(self, provider: str) -> int:
        return self.call("GET", f"/resource_providers/{provider}").body["generation"]

    def held(self, consumer: str) -> Mapping[str, Mapping[str, int]]:
        body = self.call("GET", f"/allocations/{consumer}").body
        return {name: part["resources"] for name, part in body["allocations"].items()}

    def post(self, requests: Mapping[str, Any], version: str = VERSION) -> Answer:
        return self.call("POST", "/allocations", requests, version)


def request(
    allocations: Mapping[str, Mapping[str, int]],
    generation: int | None = None,
    *,
    project: str = "project",
    user: str = "user",
    kind: str = "INSTANCE",
) -> dict[str, Any]:
    """What is asked for one consumer: amounts by provider and class."""
    return {
        "allocations": {name: {"resources": dict(part)} for name, part in allocations.items()},
        "project_id": project,
        "user_id": user,
        "consumer_generation": generation,
        "consumer_type": kind,
    }


@contextlib.contextmanager
def _connected(url: str, **options: Any) -> Iterator[Any]:
    """Have Placement's transactions in this process go to a database; gives the engine."""
    manager = enginefacade.transaction_context()
    manager.configure(connection=url, **options)
    take_back = db_api.placement_context_manager.patch_factory(manager)
    engine = db_api.get_placement_engine()
    flags = ((trait, "_TRAITS_SYNCED"), (resource_class, "_RESOURCE_CLASSES_SYNCED"))
    for module, name in flags:
        setattr(module, name, False)
    try:
        yield engine
    finally:
        for module, name in flags:
            setattr(module, name, False)
        engine.dispose()
        take_back()


def prepare(url: str) -> None:
    """Make Placement's tables in an empty database; its application fills them as it starts."""
    with _connected(url) as engine:
        migration.create_schema(engine)


class PlacementOver(fixtures.Fixture):
    """Placement in this process over a prepared database: ``application``, ``engine``.

    :param guarded: the guard is on as long as the fixture
    """

    def __init__(self, url: str, *, guarded: bool, **engine_options: Any) -> None:
        self._url = url
        self._guarded = guarded
        self._options = engine_options

    def _setUp(self) -> None:
        if self._guarded:
            guard_switch.switch_on()
            self.addCleanup(guard_switch.switch_off)
        connected = contextlib.ExitStack()
        self.addCleanup(connected.close)
        self.engine = connected.enter_context(_connected(self._url, **self._options))
        self.conf = configuration(self._url)
        self.application = Application(self.conf)


# -- races ----------------------------------------------------------------------------


def _write(
    url: str, guarded: bool, barrier: Any, providers: Sequence[str], amount: int, results: Any
) -> None:
    """Be a process of Placement that allocates once of each provider."""
    if guarded:
        guard_switch.switch_on()
    conf = configuration(url)
    db_api.configure(conf)
    application = Application(conf)
    statuses = []
    for provider in providers:
        body = {str(uuid.uuid4()): request({provider: {"VCPU": amount}})}
        barrier.wait(WAIT_SECONDS)
        statuses.append(application.post(body).status)
    results.put(statuses)


@attrs.frozen
class Race:
    """What became of rounds of a race.

    :ivar over: rounds after which a provider had more allocated than it has
    :ivar statuses: answers by status
    """

    rounds: int
    over: int
    won: int
    statuses: Mapping[int, int]


def race(
    application: Application,
    urls: Sequence[str],
    *,
    guarded: bool,
    writers: int,
    rounds: int,
    room: int = 10,
    amount: int = 6,
) -> Race:
    """Let processes allocate of one provider at a time, all at once.

    :param urls: databases of the writers, in turns: the nodes of one cluster
    :param room: VCPUs of each provider
    :param amount: VCPUs that each writer asks for
    """
    providers = [application.provider(VCPU=room) for _ in range(rounds)]
    barrier = _spawned.Barrier(writers)
    results = _spawned.Queue()
    processes = [
        _spawned.Process(
            target=_write,
            args=(urls[number % len(urls)], guarded, barrier, providers, amount, results),
            daemon=True,
        )
        for number in range(writers)
    ]
    for each in processes:
        each.start()
    try:
        statuses = [results.get(timeout=WAIT_SECONDS + 2.0 * rounds) for _ in processes]
    finally:
        for each in processes:
            each.terminate()
            each.join()
    used = [application.usages(provider).get("VCPU", 0) for provider in providers]
    told: dict[int, int] = {}
    for of_writer in statuses:
        for status in of_writer:
            told[status] = told.get(status, 0) + 1
    return Race(
        rounds,
        over=sum(each > room for each in used),
        won=sum(each > 0 for each in used),
        statuses=told,
    )
