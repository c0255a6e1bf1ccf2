# SPDX-License-Identifier: Apache-2.0
"""Random histories of requests to a Placement, odd ones among them, and what comes of each.

A history follows from its seed and from what the tables hold, step by step: over two Placements
that do the same it is the same. Names are few, so that requests meet.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from placement.db.sqlalchemy import models

from tests.functional.placement_adapter import placement_process

_CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_GOLD")
_TYPES = ("INSTANCE", "MIGRATION", "VOLUME")
#: MySQL takes the first ones for the same, and cannot keep all of the last.
_OWNERS = ("owner", "other", "Owner", "owner ", "é", "e", "x" * 255)
_ODD_OWNERS: tuple[Any, ...] = ("", "x" * 256, "\U0001f600", "nul\0", "\ud800", 7, None, ["owner"])
_ODD_CLASSES = ("vcpu", "CUSTOM_NONE", "", "VCPU\n", "VGPU")
_ODD_AMOUNTS: tuple[Any, ...] = (0, -1, 1.0, 1.5, True, "1", None, 2**31, 2**64, 1e30, float("nan"))
_ODD_GENERATIONS: tuple[Any, ...] = (True, 1.0, 0.0, "1", -1, 2**70, 0, 77)
_ODD_TYPES: tuple[Any, ...] = ("instance", "", "T" * 256, "INSTANCE\n", None, "unknown")
_BODIES = (b"", b"{", b"[]", b"{}", b"null", b"\xff", b'"\\ud800"', b"0")
_VERSIONS = (
    *("1.0", "1.7", "1.8", "1.11", "1.12", "1.13", "1.14", "1.19", "1.22", "1.23", "1.27", "1.28"),
    *("1.29", "1.33", "1.34", "1.36", "1.37", "1.38", "1.39"),
)

Tables = Mapping[str, Sequence[tuple[Any, ...]]]


@attrs.frozen
class Asked:
    """A request: the body's bytes, None without one."""

    method: str
    path: str
    version: str
    body: bytes | None


@attrs.frozen
class Step:
    """A request, what was answered, and what the tables hold then."""

    asked: Asked
    status: int
    said: Any
    tables: Tables


def difference(expected: Step, found: Step) -> str | None:
    """Tell in what two steps differ; None where they do not."""
    if expected == found:
        return None
    told = [str(expected.asked)]
    if expected.asked != found.asked:
        told.append(f"another request: {found.asked}")
    if (expected.status, expected.said) != (found.status, found.said):
        told.append(f"answers: {expected.status} {expected.said}")
        told.append(f"         {found.status} {found.said}")
    for name, rows in expected.tables.items():
        if rows != found.tables[name]:
            told.append(f"{name}: {rows}")
            told.append(f"{' ' * len(name)}  {found.tables[name]}")
    return "\n".join(told)


class Names:
    """What a history is about; follows from its seed."""

    def __init__(self, rng: random.Random) -> None:
        def made(count: int) -> list[str]:
            # Letters, so that they can be in two cases.
            return [
                "abcdef" + str(uuid.UUID(int=rng.getrandbits(128), version=4))[6:]
                for _ in range(count)
            ]

        self.providers = made(4)
        self.unknown = made(1)[0]
        self.consumers = made(4)


class History:
    """Draws requests, sends them, and keeps what came of each.

    :param leaves_consumers: refused requests may leave consumers that they made, as Placement's do:
        they are removed, and counted in ``left``
    """

    def __init__(
        self, placement: placement_process.PlacementOver, seed: int, *, leaves_consumers: bool
    ) -> None:
        self._placement = placement
        self._leaves_consumers = leaves_consumers
        self._rng = random.Random(seed)
        self._names = Names(self._rng)
        self.left = 0
        self.steps: list[Step] = []

    def run(self, steps: int) -> list[Step]:
        """Empty the tables, make providers, and send so many requests."""
        empty(self._placement.engine)
        self._prepare()
        before = tables(self._placement.engine)
        for _ in range(steps):
            step = self._send(self._draw(before), before)
            self.steps.append(step)
            before = step.tables
        return self.steps

    def _prepare(self) -> None:
        call = self._placement.application.call
        call("PUT", "/resource_classes/CUSTOM_GOLD")
        above = None
        for number, name in enumerate(self._names.providers):
            # The first three are a tree, the last one is apart.
            parent = above if number in (1, 2) else None
            made = call(
                "POST",
                "/resource_providers",
                {"name": name, "uuid": name, "parent_provider_uuid": parent},
            )
            assert made.status == 200, made
            above = name
            self._placement.application.call(
                "PUT", f"/resource_providers/{name}/inventories", self._inventories(0)
            )
        if self._odd(0.2):
            self._allocate_without_a_record(self._spelled_in_a_case(self._names.consumers[0]))
            if self._odd(0.4):
                self._leave_a_record(self._spelled_in_a_case(self._names.consumers[0]))
        elif self._odd(0.1):
            self._leave_a_record(self._names.consumers[0])

    def _spelled_in_a_case(self, name: str) -> str:
        return self._rng.choice((name, name.upper()))

    def _leave_a_record(self, consumer: str) -> None:
        """Have a consumer of nothing, as Placement leaves one where it refuses a request."""
        with self._placement.engine.begin() as connection:
            owner = {}
            for table in (_PROJECTS, _USERS):
                made = connection.execute(table.insert().values(external_id="owner"))
                owner[table.name] = made.inserted_primary_key[0]
            connection.execute(
                _CONSUMERS.insert().values(
                    uuid=consumer, project_id=owner["projects"], user_id=owner["users"]
                )
            )

    def _allocate_without_a_record(self, consumer: str) -> None:
        """Have allocations of before Placement kept consumers, where nobody has migrated them."""
        names = self._rng.sample(self._names.providers, 2)
        with self._placement.engine.begin() as connection:
            for number in connection.execute(
                sa.select(_PROVIDERS.c.id).where(_PROVIDERS.c.uuid.in_(names))
            ).scalars():
                connection.execute(
                    _ALLOCATIONS.insert().values(
                        resource_provider_id=number,
                        resource_class_id=0,
                        consumer_id=consumer,
                        used=1,
                    )
                )

    def _inventories(self, generation: Any) -> dict[str, Any]:
        rng = self._rng
        return {
            "resource_provider_generation": generation,
            "inventories": {
                each: {
                    "total": rng.choice((4, 8, 16, 32)),
                    "reserved": rng.choice((0, 0, 1)),
                    "allocation_ratio": rng.choice((1.0, 1.0, 1.5)),
                    "min_unit": 2 if self._odd(0.05) else 1,
                    "max_unit": 3 if self._odd(0.1) else 32,
                    "step_size": 2 if self._odd(0.05) else 1,
                }
                for each in _CLASSES
                if rng.random() < 0.95
            },
        }

    def _send(self, asked: Asked, before: Tables) -> Step:
        answer = self._placement.application.call(
            asked.method, asked.path, asked.body, asked.version
        )
        if answer.status >= 400 and self._leaves_consumers:
            known = {row[0] for row in before["consumers"]}
            self.left += _remove_consumers_but(self._placement.engine, known)
        if answer.status == 500:
            # Of several texts one cannot be sent: what of the others was made by then is not told.
            _remove_names_but(self._placement.engine, before)
        return Step(asked, answer.status, _comparable(answer), tables(self._placement.engine))

    # -- drawing ----------------------------------------------------------------------

    def _draw(self, now: Tables) -> Asked:
        rng = self._rng
        draws: tuple[tuple[float, Callable[[Tables], Asked]], ...] = (
            (10, self._post),
            (5, self._put),
            (1, self._delete),
            (1, self._get),
            (1, self._change_provider),
            (0.5, self._reshape),
        )
        weights, kinds = zip(*draws, strict=True)
        return rng.choices(kinds, weights)[0](now)

    def _odd(self, chance: float = 0.03) -> bool:
        return self._rng.random() < chance

    def _spelled(self, name: str, chance: float = 0.05) -> str:
        """Return a uuid, seldom in another spelling."""
        if not self._odd(chance):
            return name
        plain = name.replace("-", "")
        return self._rng.choice(
            (name.upper(), name.upper(), name + "\n", plain, plain + "0000", "-" * 36, name[:-1])
        )

    def _amount(self) -> Any:
        return self._rng.choice(_ODD_AMOUNTS if self._odd(0.015) else (1, 1, 1, 2, 2, 3, 6))

    def _resources(self) -> dict[str, Any]:
        rng = self._rng
        found = {each: self._amount() for each in rng.sample(_CLASSES, rng.choice((1, 1, 2, 3)))}
        if self._odd(0.015):
            found[rng.choice(_ODD_CLASSES)] = 1
        if self._odd(0.01):
            found = {}
        return found

    def _allocations(self, *, empty: float) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < empty:
            return {}
        chosen = rng.sample(self._names.providers, rng.choice((1, 1, 1, 2, 3)))
        if self._odd(0.015):
            chosen.insert(rng.randrange(len(chosen) + 1), self._names.unknown)
        if self._odd(0.015):
            chosen.append(chosen[0].upper())
        found: dict[str, Any] = {}
        for each in chosen:
            found[self._spelled(each, 0.015)] = {"resources": self._resources()}
            if self._odd(0.015):
                found[each] = {"resources": {"VCPU": 1}, "generation": rng.choice((0, 5, "0"))}
        return found

    def _generation(self, consumer: str, now: Tables) -> Any:
        if self._odd(0.06):
            return self._rng.choice((*_ODD_GENERATIONS, None))
        known = {row[0].lower(): row[1] for row in now["consumers"]}
        return known.get(consumer.lower())

    def _owner(self) -> Any:
        return self._rng.choice(_ODD_OWNERS if self._odd(0.01) else _OWNERS)

    def _one(self, consumer: str, version: tuple[int, int], now: Tables, empty: float) -> Any:
        """Return what is asked for one consumer."""
        rng = self._rng
        asked: dict[str, Any] = {"allocations": self._allocations(empty=empty)}
        if version < (1, 12):
            asked["allocations"] = [
                {"resource_provider": {"uuid": name}, **part}
                for name, part in asked["allocations"].items()
            ]
        # Seldom, a request has what another microversion wants.
        if version >= (1, 8) or self._odd(0.015):
            asked.update(project_id=self._owner(), user_id=self._owner())
        if version >= (1, 28) or self._odd(0.015):
            asked["consumer_generation"] = self._generation(consumer, now)
        if version >= (1, 38) or self._odd(0.015):
            asked["consumer_type"] = rng.choice(_ODD_TYPES if self._odd() else _TYPES)
        if version >= (1, 34) and rng.random() < 0.2:
            asked["mappings"] = {rng.choice(("", "1", "_A", "/")): [self._names.providers[0]]}
        if self._odd(0.01):
            del asked[rng.choice(sorted(asked))]
        if self._odd(0.01):
            asked["more"] = 1
        return asked

    def _version(self, least: tuple[int, int] = (1, 0)) -> tuple[str, tuple[int, int]]:
        """Return a microversion, seldom one before the least."""
        while True:
            text = self._rng.choice((*_VERSIONS, "1.27", "1.38", "1.38", "1.38", "1.38"))
            major, minor = text.split(".")
            if (int(major), int(minor)) >= least or self._odd(0.1):
                return text, (int(major), int(minor))

    def _body(self, asked: Any) -> bytes:
        if self._odd(0.01):
            return self._rng.choice(_BODIES)
        return json.dumps(asked).encode()

    def _post(self, now: Tables) -> Asked:
        rng = self._rng
        text, version = self._version((1, 13))
        chosen = rng.sample(self._names.consumers, rng.choice((1, 1, 2, 2, 3, 4)))
        if rng.random() < 0.1:
            again = rng.choice(chosen)
            again = rng.choice((again.upper(), again.upper(), again + "\n"))
            chosen.insert(rng.randrange(len(chosen) + 1), again)
        asked = {}
        for name in chosen:
            spelled = self._spelled(name)
            asked[spelled] = self._one(spelled, version, now, 0.2)
        # What a second spelling has to know of a consumer that the first one makes.
        if rng.random() < 0.5:
            seen: set[str] = set()
            for name, each in asked.items():
                if name.strip().lower() in seen and each.get("consumer_generation", 0) is None:
                    each["consumer_generation"] = 0
                seen.add(name.strip().lower())
        return Asked("POST", "/allocations", text, self._body(asked))

    def _put(self, now: Tables) -> Asked:
        text, version = self._version()
        consumer = self._spelled(self._rng.choice(self._names.consumers)).replace("\n", "%0A")
        asked = self._one(consumer, version, now, 0.2)
        return Asked("PUT", f"/allocations/{consumer}", text, self._body(asked))

    def _delete(self, _now: Tables) -> Asked:
        consumer = self._spelled(self._rng.choice(self._names.consumers)).replace("\n", "%0A")
        return Asked("DELETE", f"/allocations/{consumer}", self._version()[0], None)

    def _get(self, _now: Tables) -> Asked:
        rng = self._rng
        path = rng.choice(
            (
                f"/allocations/{self._spelled(rng.choice(self._names.consumers))}",
                f"/resource_providers/{rng.choice(self._names.providers)}/allocations",
                f"/resource_providers/{rng.choice(self._names.providers)}/usages",
                f"/usages?project_id={rng.choice(('owner', 'other'))}",
            )
        ).replace("\n", "%0A")
        return Asked("GET", path, self._version()[0], None)

    def _change_provider(self, now: Tables) -> Asked:
        """Return a change of inventories, traits or aggregates, which raise generations too."""
        rng = self._rng
        name = rng.choice(self._names.providers)
        generation = 99 if self._odd(0.1) else dict(now["providers"])[name]
        what, asked = rng.choice(
            (
                ("inventories", self._inventories(generation)),
                (
                    "traits",
                    {
                        "resource_provider_generation": generation,
                        "traits": rng.sample(
                            ("HW_CPU_X86_AVX", "HW_CPU_X86_VMX"), rng.randrange(3)
                        ),
                    },
                ),
                (
                    "aggregates",
                    {
                        "resource_provider_generation": generation,
                        "aggregates": [self._names.unknown],
                    },
                ),
            )
        )
        return Asked(
            "PUT", f"/resource_providers/{name}/{what}", "1.38", json.dumps(asked).encode()
        )

    def _reshape(self, now: Tables) -> Asked:
        rng = self._rng
        generations = dict(now["providers"])
        inventories = {
            name: self._inventories(99 if self._odd(0.1) else generations[name])
            for name in rng.sample(self._names.providers, rng.choice((1, 2)))
        }
        allocations = {
            name: self._one(name, (1, 38), now, 0.2)
            for name in rng.sample(self._names.consumers, rng.choice((0, 1, 2)))
        }
        asked = {"inventories": inventories, "allocations": allocations}
        return Asked("POST", "/reshaper", "1.38", self._body(asked))


# -- what is compared -----------------------------------------------------------------

#: Of what is said of a failure: how the way to it looked, and statements.
_WAY = re.compile(r"^(Traceback| |During handling|The above exception|\[SQL|\[parameters|\(Back)")


def _comparable(answer: placement_process.Answer) -> Any:
    """Return what was answered, without what no two answers have in common."""
    said = {"type": answer.headers.get("Content-Type"), "body": answer.body}
    errors = answer.body.get("errors") if isinstance(answer.body, dict) else None
    if not errors:
        return said
    [error] = errors
    detail = error.get("detail", "")
    if answer.status == 500:
        lines = [each for each in detail.splitlines() if each.strip() and not _WAY.match(each)]
        # Where in a statement a text stands that cannot be sent.
        detail = re.sub(r"position \d+", "position", lines[-1].strip()) if lines else detail
    # Placement names what it has in sets.
    words = sorted(re.split(r"[\s,]+", detail))
    told = {name: each for name, each in error.items() if name not in ("request_id", "detail")}
    return {"type": said["type"], "error": told, "words": words}


_ALLOCATIONS = models.Allocation.__table__
_CLASS = models.ResourceClass.__table__
_CONSUMERS = models.Consumer.__table__
_INVENTORIES = models.Inventory.__table__
_PROJECTS = models.Project.__table__
_PROVIDERS = models.ResourceProvider.__table__
_TYPE = models.ConsumerType.__table__
_USERS = models.User.__table__


def _queries() -> dict[str, Any]:
    """Return what is read of each table, by names instead of ids."""
    consumers = (
        _CONSUMERS.join(_PROJECTS, _CONSUMERS.c.project_id == _PROJECTS.c.id)
        .join(_USERS, _CONSUMERS.c.user_id == _USERS.c.id)
        .outerjoin(_TYPE, _CONSUMERS.c.consumer_type_id == _TYPE.c.id)
    )
    allocations = _ALLOCATIONS.join(
        _PROVIDERS, _ALLOCATIONS.c.resource_provider_id == _PROVIDERS.c.id
    ).outerjoin(_CLASS, _ALLOCATIONS.c.resource_class_id == _CLASS.c.id)
    return {
        "consumers": sa.select(
            _CONSUMERS.c.uuid,
            _CONSUMERS.c.generation,
            _PROJECTS.c.external_id,
            _USERS.c.external_id,
            _TYPE.c.name,
            # Not whether it was changed: Placement makes a new one by two statements.
            _CONSUMERS.c.created_at.is_not(None),
        ).select_from(consumers),
        "allocations": sa.select(
            _ALLOCATIONS.c.consumer_id,
            _PROVIDERS.c.uuid,
            _CLASS.c.name,
            _ALLOCATIONS.c.used,
            _ALLOCATIONS.c.created_at.is_not(None),
            _ALLOCATIONS.c.updated_at.is_not(None),
        ).select_from(allocations),
        "providers": sa.select(_PROVIDERS.c.uuid, _PROVIDERS.c.generation),
        "changed": sa.select(_PROVIDERS.c.uuid, _PROVIDERS.c.updated_at.is_not(None)),
        "projects": sa.select(_PROJECTS.c.external_id),
        "users": sa.select(_USERS.c.external_id),
        "types": sa.select(_TYPE.c.name),
        # Whether a row of consumers is of nobody, which the first one would leave out.
        "counts": sa.select(
            *(
                sa.select(sa.func.count()).select_from(each).scalar_subquery()
                for each in (_CONSUMERS, _ALLOCATIONS, _INVENTORIES)
            )
        ),
    }


_QUERIES = _queries()


def tables(engine: Any) -> Tables:
    """Return what there is, in an order of its own."""
    with engine.connect() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(query)), key=repr)
            for name, query in _QUERIES.items()
        }


def empty(engine: Any) -> None:
    """Leave nothing in the tables that requests write."""
    with engine.begin() as connection:
        connection.execute(
            _PROVIDERS.update().values(parent_provider_id=None, root_provider_id=None)
        )
        for each in (
            _ALLOCATIONS,
            _CONSUMERS,
            _INVENTORIES,
            models.ResourceProviderTrait.__table__,
            models.ResourceProviderAggregate.__table__,
            models.PlacementAggregate.__table__,
            _PROVIDERS,
            _PROJECTS,
            _USERS,
            _TYPE,
        ):
            connection.execute(each.delete())


def _remove_consumers_but(engine: Any, known: set[str]) -> int:
    """Remove consumers that are not known; return how many."""
    with engine.begin() as connection:
        gone = _CONSUMERS.delete().where(_CONSUMERS.c.uuid.not_in(known))
        return int(connection.execute(gone).rowcount)


def _remove_names_but(engine: Any, known: Tables) -> None:
    """Remove projects, users and types that are not known."""
    with engine.begin() as connection:
        for name, column in (
            ("projects", _PROJECTS.c.external_id),
            ("users", _USERS.c.external_id),
            ("types", _TYPE.c.name),
        ):
            # By ids: databases do not agree on which texts are the same.
            texts = {row[0] for row in known[name]}
            rows = connection.execute(sa.select(column.table.c.id, column)).fetchall()
            gone = [number for number, text in rows if text not in texts]
            connection.execute(column.table.delete().where(column.table.c.id.in_(gone)))
