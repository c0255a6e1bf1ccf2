# SPDX-License-Identifier: Apache-2.0
"""Placement's application over a real database: in this process, and in others that race.

Each of those is a process as a WSGI server has: its own application, engine and
caches. They meet at a barrier before each round, and then write to the same
provider at once.
"""

from __future__ import annotations

import collections
import contextlib
import json
import multiprocessing
import random
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
            request.body = body if isinstance(body, bytes) else json.dumps(body).encode()
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


# -- generations ----------------------------------------------------------------------


class _OwnConsumers:
    """What one process writes for consumers of its own, and how often that raises each provider.

    Placement raises a provider once for each write that names it, or that empties a consumer who
    has something there; not where a consumer goes elsewhere, nor where its allocations are deleted.

    :param few: how many consumers
    """

    def __init__(
        self, application: Application, providers: Sequence[str], seed: int, few: int = 4
    ) -> None:
        self._application = application
        self._providers = providers
        self._rng = random.Random(seed)
        self._held: dict[str, tuple[str, ...]] = {str(uuid.uuid4()): () for _ in range(few)}
        self._generations: dict[str, int | None] = dict.fromkeys(self._held)
        self.raised: collections.Counter[str] = collections.Counter()
        self.statuses: collections.Counter[int] = collections.Counter()

    def step(self) -> None:
        """Write once: one or two consumers anew, elsewhere or emptied; or delete one's."""
        chosen = self._rng.sample(sorted(self._held), self._rng.choice((1, 1, 2)))
        if self._rng.random() < 0.15:
            answer = self._application.call("DELETE", f"/allocations/{chosen[0]}")
            self.statuses[answer.status] += 1
            if answer.status == 204:
                self._held[chosen[0]], self._generations[chosen[0]] = (), None
            return
        wanted = {}
        for name in chosen:
            is_emptied = self._held[name] and self._rng.random() < 0.3
            size = 0 if is_emptied else self._rng.choice((1, 1, 2, 3))
            wanted[name] = tuple(self._rng.sample(self._providers, size))
        body = {
            name: request(
                {each: {"VCPU": self._rng.choice((1, 1, 30))} for each in going},
                self._wrong_or(self._generations[name]),
            )
            for name, going in wanted.items()
        }
        if len(chosen) == 1 and self._rng.random() < 0.5:
            answer = self._application.call("PUT", f"/allocations/{chosen[0]}", body[chosen[0]])
        else:
            answer = self._application.post(body)
        self.statuses[answer.status] += 1
        if answer.status != 204:
            return
        named = {each for going in wanted.values() for each in going}
        named.update(
            each for name, going in wanted.items() if not going for each in self._held[name]
        )
        self.raised.update(named)
        for name, going in wanted.items():
            self._held[name] = going
            # Without any it has no record, and is new the next time.
            self._generations[name] = (self._generations[name] or 0) + 1 if going else None

    def _wrong_or(self, generation: int | None) -> int | None:
        return 77 if self._rng.random() < 0.1 else generation


def _churn(
    url: str, guarded: bool, barrier: Any, providers: Sequence[str], work: Any, results: Any
) -> None:
    """Be a process of Placement that writes for consumers of its own, in a random order."""
    seed, steps = work
    if guarded:
        guard_switch.switch_on()
    conf = configuration(url)
    db_api.configure(conf)
    own = _OwnConsumers(Application(conf), providers, seed)
    barrier.wait(WAIT_SECONDS)
    for _ in range(steps):
        own.step()
    results.put((dict(own.raised), dict(own.statuses)))


@attrs.frozen
class Churn:
    """What became of writes of several processes, by provider.

    :ivar raised: how often each was to be raised, by what was answered
    :ivar found: by how much its generation is higher
    """

    raised: Mapping[str, int]
    found: Mapping[str, int]
    statuses: Mapping[int, int]


def churn(
    application: Application,
    urls: Sequence[str],
    *,
    guarded: bool,
    writers: int,
    steps: int,
    seed: int,
    room: int = 40,
) -> Churn:
    """Let processes write at once, each for consumers of its own, on few providers.

    :param steps: writes of each process
    :param room: VCPUs of each provider
    """
    providers = [application.provider(VCPU=room) for _ in range(4)]
    before = {each: application.generation(each) for each in providers}
    barrier = _spawned.Barrier(writers)
    results = _spawned.Queue()
    processes = [
        _spawned.Process(
            target=_churn,
            args=(
                urls[number % len(urls)],
                guarded,
                barrier,
                providers,
                (1000 * seed + number, steps),
                results,
            ),
            daemon=True,
        )
        for number in range(writers)
    ]
    for each in processes:
        each.start()
    try:
        told = [results.get(timeout=WAIT_SECONDS + 1.0 * steps) for _ in processes]
    finally:
        for each in processes:
            each.terminate()
            each.join()
    raised: collections.Counter[str] = collections.Counter()
    statuses: collections.Counter[int] = collections.Counter()
    for of_writer, answers in told:
        raised.update(of_writer)
        statuses.update(answers)
    return Churn(
        {each: raised[each] for each in providers},
        {each: application.generation(each) - before[each] for each in providers},
        statuses,
    )
