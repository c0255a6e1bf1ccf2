# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the RPC endpoints: whatever comes, typed errors and nothing built-in changed.

The parts are a worker's: the server's serializer, both endpoints, admission,
publisher and back end (in memory). What plans and what remembers decisions needs
Nova, and is a function here.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.rpc import endpoint, host_endpoint, update_validation
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec, explanations, objects
from tests.fuzz import target
from tests.unit.cmd import samples as cmd_samples
from tests.unit.store import store_samples

DECLARED = (*known_namespaces.BUILT_IN, store_samples.POOLS)
METHODS = (
    "update_host_states",
    "get_host_states",
    "list_host_states",
    "explain",
    "get_decisions",
    "list_namespaces",
    "get_status",
)
LIMITS = update_validation.UpdateLimits(
    records_per_update=50, update_bytes=100_000, updates_per_second=1e9, page_size=5
)
#: An error is read by people, and may come 1,000 times in a call.
MOST_ERROR_TEXT = 5_000
#: What is built in is looked at after so many messages.
_CHECKED_OF = 500


class Worker:
    """What answers on a scheduler, and what stood on the back end before."""

    def __init__(self) -> None:
        self._hub = memory.MemoryHub()
        self._synchronizer = memory.MemorySynchronizer(shared_hub=self._hub)
        self._synchronizer.open()
        self._store = host_state_store.HostStateStore(DECLARED, codec.decode_state)
        self._fill()
        self._serializer = objects.Serializer(LIMITS.update_bytes)
        first = endpoint.StateEndpoint(
            self._store,
            DECLARED,
            update_validation.UpdateValidation(
                DECLARED, LIMITS, [each.name for each in known_namespaces.BUILT_IN]
            ),
            LIMITS,
            self._publish,
            cmd_samples.feed,
            lambda: endpoint.Freshness("epoch", 0.5, 1),
        )
        second = endpoint.ExplainingEndpoint(
            _explained, _past, lambda: 1000, endpoint.ExplainBounds(places=500_000)
        )
        third = host_endpoint.HostEndpoint(self._taken, known_namespaces.HOST_TABLES, LIMITS)
        self._methods = {
            name: getattr(each, name)
            for name in METHODS
            for each in (first, second, third)
            if hasattr(each, name)
        }
        self.before = self.built_in()

    def _fill(self) -> None:
        changes = []
        for number, namespace in enumerate(DECLARED):
            key = records.RecordKey(namespace.name, f"key-{number}")
            state: dict[str, Any] = {"cell": "c1", "row": {"host": "h1"}}
            payload = codec.encode(state, namespace.schema)
            [written] = self._synchronizer.write([records.Write(key, 0, payload)])
            assert written.record is not None
            changes.append(records.Change(written.record, state))
        self._store.apply_page(changes)

    def _publish(self, owner: str, states: Any) -> endpoint.PublishedStates:
        declared = {namespace.name: namespace for namespace in DECLARED}
        report = publisher.Publisher(self._synchronizer, declared, owner).publish(
            {
                key: lambda current, state=state: publisher.DELETE if state is None else state
                for key, state in states.items()
            }
        )
        return endpoint.PublishedStates(
            report.published, report.unchanged, report.deleted, report.version, report.rejected
        )

    def _taken(self) -> host_endpoint.JudgedSnapshot:
        return host_endpoint.JudgedSnapshot(
            snapshot=self._store.snapshot(),
            epoch="epoch",
            version=1,
            proof_age_seconds=0.5,
            scheduler="s",
            scheduler_state="following",
            cells=[_scope("c1"), _scope("c2", "no reporter")],
            others=[_scope("placement")],
        )

    def built_in(self) -> dict[str, tuple[int, bytes]]:
        """Return what the back end holds of the built-in namespaces."""
        names = [each.name for each in known_namespaces.BUILT_IN]
        snapshot = self._synchronizer.snapshot(names)
        return {
            str(record.key): (record.revision, record.payload)
            for page in snapshot.pages
            for record in page
        }

    def call(self, method: str, arguments: dict[str, Any]) -> errors.NodbError | None:
        """Have a message answered; return the error that its sender gets.

        :raises Finding: it is none of ours, or too long, or an answer cannot be sent
        """
        try:
            taken = {
                name: self._serializer.deserialize_entity({}, value)
                for name, value in arguments.items()
            }
            answer = self._methods[method]({}, **taken)
            json.dumps(self._serializer.serialize_entity({}, answer))
        except oslo_messaging.ExpectedException as wrapped:
            error = wrapped.exc_info[1]
        except Exception as raised:
            error = raised
        else:
            return None
        if not isinstance(error, errors.NodbError):
            raise target.Finding(f"{type(error).__name__}: {str(error)[:500]}") from error
        if len(str(error)) > MOST_ERROR_TEXT:
            raise target.Finding(f"an error of {len(str(error))} characters")
        rebuilt = type(error)(*error.args)
        if str(rebuilt) != str(error):
            raise target.Finding(f"{type(error).__name__} is another one at the caller")
        return error

    def check(self) -> None:
        """Look at the built-in namespaces.

        :raises Finding: they changed
        """
        if self.built_in() != self.before:
            raise target.Finding("a built-in namespace was written")


def _scope(name: str, reason: str = "") -> objects.ScopeStatus:
    return objects.ScopeStatus(scope=name, hosts=1, proved=not reason, reason=reason, fallbacks={})


def _explained(context: Any, request: Any, servers: int, limit: int) -> explanations.Explanation:
    return explanations.Explanation(
        scheduler="s",
        pid=1,
        at=1.0,
        seconds=0.1,
        servers=servers,
        candidates="memory",
        reason="",
        counts=[],
        passed=0,
        hosts=[],
        placed=[],
    )


def _past(server: str) -> explanations.PastDecisions:
    return explanations.PastDecisions(host="h", pid=1, remembered=0, since=None, decisions=[])


# -- what is sent ---------------------------------------------------------------

TEXTS = (
    *(each.name for each in DECLARED),
    *(each.owner for each in DECLARED),
    *(f"key-{number}" for number in range(len(DECLARED))),
    "",
    "a\nb",
    "\x00",
    "\ud800",
    "é" * 150,
    "k" * 1000,
    "free_gb",
    "tags",
    "backend",
    "==",
    "in",
    "<",
    "1e999",
    "nan",
    "nodb_object.name",
    "nodb_object.data",
    "NodbHostStateUpdate",
    "[" * 60 + "]" * 60,
    "[" * 5000 + "]" * 5000,
    "[" + "[]," * 5000 + "[]]",
    '{"a":' * 100 + "1" + "}" * 100,
    '{"a": 1}',
    '{"pool": {"free_gb": "much"}}',
    '{"swept_from": 1e18}',
    "{",
)
COLUMNS = ("free_gb", "ratio", "thin", "backend", "tags", "host", "cell", "no such", "")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "like", "")
#: Arguments that are left out in half of the messages.
OPTIONAL = (
    "keys",
    "ids",
    "cell",
    "host",
    "node",
    "service",
    "search",
    "predicate",
    "namespaces",
    "limit",
    "marker",
    "unproved",
    "servers",
)
NUMBERS = (0, 1, -1, 5, 1000, 1001, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 0.5, 1e308)
ARGUMENTS = {
    "update_host_states": ("owner", "records"),
    "get_host_states": ("namespace", "keys", "predicate", "limit", "marker"),
    "list_host_states": OPTIONAL[:-1],
    "list_namespaces": (),
    "get_status": (),
    "explain": ("request", "servers", "limit"),
    "get_decisions": ("instance_uuid",),
}


def value(dice: random.Random, depth: int = 0) -> Any:
    """Return anything that JSON may carry; infinities and NaN as Python's own does."""
    kind = dice.random()
    if kind < 0.35 or depth > 5:
        return dice.choice(TEXTS)
    if kind < 0.55:
        return dice.choice(NUMBERS)
    if kind < 0.65:
        return dice.choice((None, True, False, float("inf"), float("nan")))
    if kind < 0.66 and depth == 0:
        return tower(dice.choice((10, 70, 500)))
    if kind < 0.83:
        return [value(dice, depth + 1) for _ in range(dice.randrange(6))]
    return {dice.choice(TEXTS): value(dice, depth + 1) for _ in range(dice.randrange(5))}


def tower(levels: int) -> Any:
    """Return lists in lists."""
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


def update(dice: random.Random) -> Any:
    """Return a record as it travels, mostly."""
    state: Any = {
        "pool": {"free_gb": value(dice, 3)},
        "tags": value(dice, 4),
        **({"x": value(dice)} if dice.random() < 0.5 else {}),
    }
    try:
        text: Any = json.dumps(state)
    except (ValueError, RecursionError):
        text = "{}"
    if dice.random() < 0.3:
        text = value(dice)
    data = {
        "namespace": dice.choice(TEXTS[: len(DECLARED)]) if dice.random() < 0.8 else value(dice),
        "key": dice.choice(TEXTS) if dice.random() < 0.9 else value(dice),
        "state": text,
    }
    if dice.random() < 0.3:
        data["namespace"] = "pools"
    if dice.random() < 0.1:
        data.pop(dice.choice(list(data)))
    whole = {
        "nodb_object.name": "NodbHostStateUpdate",
        "nodb_object.version": "1.0",
        "nodb_object.namespace": "nova_nodb_scheduler",
        "nodb_object.data": data,
    }
    if dice.random() < 0.1:
        whole[dice.choice(list(whole))] = value(dice)
    return whole


_OF_HOSTS: dict[str, Callable[[random.Random], Any]] = {
    "ids": lambda dice: [dice.choice(NUMBERS) for _ in range(dice.randrange(7))],
    "namespaces": lambda dice: [
        dice.choice(TEXTS[: len(DECLARED)]) for _ in range(dice.randrange(2))
    ],
    "cell": lambda dice: dice.choice(("c1", "c2", *TEXTS)),
    "search": lambda dice: "".join(dice.choices("%_\\h1", k=5)),
    "unproved": lambda dice: dice.random() < 0.8,
}


def argument(dice: random.Random, name: str) -> Any:
    """Return something for an argument, now and then of the right kind."""
    if dice.random() < 0.15:
        return value(dice)
    if name == "records":
        return [update(dice) for _ in range(dice.randrange(4))]
    if name == "predicate":
        conditions = []
        for _ in range(dice.randrange(3)):
            conditions.append([dice.choice(COLUMNS), dice.choice(OPERATORS), value(dice)])
        return conditions
    if name in ("namespace", "owner"):
        return dice.choice(("pools", "cinder", *TEXTS[: 2 * len(DECLARED)]))
    if name == "keys":
        return [dice.choice(TEXTS) for _ in range(dice.randrange(7))]
    if name in _OF_HOSTS:
        return _OF_HOSTS[name](dice)
    if name in ("marker", "host", "node", "service", "instance_uuid"):
        return dice.choice(TEXTS)
    if name == "request":
        return {dice.choice(TEXTS): value(dice) for _ in range(dice.randrange(4))}
    if name in ("servers", "limit"):
        return dice.choice(NUMBERS)
    return value(dice)


def message(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a method and its arguments: some too many, some missing."""
    method = METHODS[min(dice.randrange(len(METHODS)), dice.randrange(len(METHODS)))]
    arguments = {
        name: argument(dice, name)
        for name in ARGUMENTS[method]
        if dice.random() < (0.5 if name in OPTIONAL else 0.97)
    }
    if dice.random() < 0.02:
        arguments[dice.choice(("cinder", "records", "limit"))] = value(dice)
    return method, arguments


class Endpoints:
    """Messages to a worker, one a case."""

    case_bytes = 32 << 20

    def __init__(self) -> None:
        self._worker = Worker()
        self._done = 0

    def case(self, dice: random.Random) -> str:
        """Answer one message; what is built in is looked at now and then."""
        method, arguments = message(dice)
        error = self._worker.call(method, arguments)
        self._done += 1
        if self._done % _CHECKED_OF == 0:
            self._worker.check()
        return f"{method}: {'answered' if error is None else type(error).__name__}"

    def close(self) -> None:
        """Look at what is built in once more."""
        self._worker.check()
