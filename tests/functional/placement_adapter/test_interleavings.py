# SPDX-License-Identifier: Apache-2.0
"""What another client does between two statements of a guarded request, over real databases.

A consumer's record may be deleted meanwhile, and made again in another case, which to MySQL is the
same name. ``NODB_PROPERTY_EXAMPLES`` has so many times drawn of each database, and what came of
them printed; ``NODB_HISTORY_SEED`` is the first one's seed.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import attrs
import sqlalchemy as sa
from placement.objects import consumer as consumer_obj

from nova_nodb_scheduler.testing import servers
from tests.functional.placement_adapter import (
    placement_histories,
    placement_process,
    test_guarded_write,
)

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "20"))
FIRST = int(os.environ.get("NODB_HISTORY_SEED", "0"))
WAIT_SECONDS = 60.0
#: In the drawn ones: what the other one has not done by then may wait for a lock of the request's.
LOCKED_SECONDS = 3.0
#: So many statements a guarded request sends before it locks providers, and one more.
STATEMENTS = 5
#: Each provider's VCPUs: for what is there before, seldom for all that is asked then.
ROOM = 15

_READS = "UNION ALL"
_LOCKS = re.compile(
    r"(?s)UPDATE resource_providers|SELECT .*FROM resource_providers .*FOR .*UPDATE"
)

_request = placement_process.request


class InterleavedCase(test_guarded_write.GuardedCase):
    def setUp(self) -> None:
        super().setUp()
        self.pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(self.pool.shutdown)

    @contextlib.contextmanager
    def before_statement(
        self, number: int, other: Callable[[], Any], seconds: float = WAIT_SECONDS
    ) -> Iterator[list[futures.Future[Any]]]:
        """Have another client do something before this thread's statement of a number.

        They are counted from the one that reads what the request names. It is before providers
        are locked at the latest: :class:`.test_guarded_write.ConflictsTest` has what comes behind.

        :param seconds: after so many the statement is sent all the same
        :returns: what the other one does, if it has begun
        """
        engine, mine, seen = self.fixture.engine, threading.get_ident(), 0
        begun: list[futures.Future[Any]] = []

        def sent(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            nonlocal seen
            if threading.get_ident() != mine or statement == "SELECT 1" or begun:
                return
            if not seen and _READS not in statement:
                return
            if seen == number or _LOCKS.match(statement):
                begun.append(self.pool.submit(other))
                futures.wait(begun, seconds)
            seen += 1

        sa.event.listen(engine, "before_cursor_execute", sent)
        try:
            yield begun
        finally:
            sa.event.remove(engine, "before_cursor_execute", sent)
            futures.wait(begun, WAIT_SECONDS)


class MadeAgainTest(InterleavedCase):
    """Its record is deleted and made again in another case, behind the first reading."""

    def setUp(self) -> None:
        super().setUp()
        self.provider = self.placement.provider(VCPU=10)
        self.consumer = "abcdef00-" + str(uuid.uuid4())[9:]

    def make(self, name: str, amount: int) -> int:
        return self.placement.post({name: _request({self.provider: {"VCPU": amount}})}).status

    def make_again(self) -> list[int]:
        removed = self.placement.call("DELETE", f"/allocations/{self.consumer}").status
        return [removed, self.make(self.consumer.upper(), 2)]

    def check_refused(
        self, other: Callable[[], Sequence[int]], method: str, path: str, asked: Any
    ) -> None:
        with self.before_statement(1, other) as begun:
            answer = self.placement.call(method, path, asked)
        self.assertLessEqual(set(begun[0].result()), {204})
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual({self.consumer.upper(): 1}, self.consumers_of(self.provider))
        self.assertEqual({"VCPU": 2}, self.placement.usages(self.provider))
        # Nor does it leave others.
        self.assertEqual(1, self.consumer_records())

    def test_it_is_not_emptied_by_a_post(self) -> None:
        self.make(self.consumer, 1)
        new = _request({self.provider: {"VCPU": 1}})
        asked = {str(uuid.uuid4()): new, self.consumer: _request({}, 1)}
        self.check_refused(self.make_again, "POST", "/allocations", asked)

    def test_nor_by_a_put(self) -> None:
        self.make(self.consumer, 1)
        path = f"/allocations/{self.consumer}"
        self.check_refused(self.make_again, "PUT", path, _request({}, 1))

    def test_nor_by_a_reshape(self) -> None:
        self.make(self.consumer, 1)
        inventories = {
            self.provider: {
                "resource_provider_generation": self.placement.generation(self.provider),
                "inventories": {"VCPU": {"total": 10}},
            }
        }
        asked = {"inventories": inventories, "allocations": {self.consumer: _request({}, 1)}}
        self.check_refused(self.make_again, "POST", "/reshaper", asked)

    def test_nor_is_it_given_what_was_asked_for_the_one_before(self) -> None:
        self.make(self.consumer, 1)
        asked = {self.consumer: _request({self.provider: {"VCPU": 3}}, 1)}
        self.check_refused(self.make_again, "POST", "/allocations", asked)

    def test_one_that_was_new_is_not_emptied_either(self) -> None:
        def make() -> list[int]:
            return [self.make(self.consumer.upper(), 2)]

        asked = {self.consumer: _request({})}
        self.check_refused(make, "POST", "/allocations", asked)


@attrs.frozen
class _Asked:
    """A request."""

    method: str
    path: str
    body: Any
    version: str = placement_process.VERSION


@attrs.frozen
class _Example:
    """What is there, what is asked of a guarded Placement, and what another one does meanwhile."""

    before: tuple[_Asked, ...]
    #: Renames the records of consumers, not their allocations.
    is_renamed: bool
    asked: _Asked
    meanwhile: tuple[_Asked, ...]
    number: int

    @property
    def names_one_twice(self) -> bool:
        """Whether Placement reads what may be one consumer at two moments."""
        names = self.asked.body.get("allocations", self.asked.body)
        return len({name.lower() for name in names}) < len(names)


class _Draw:
    """Draws one example, about two consumers.

    :param providers: there are, each of generation 1
    """

    def __init__(self, rng: random.Random, providers: Sequence[str]) -> None:
        self._rng = rng
        self._providers = providers
        self._first, self._second = (
            "abcdef00-" + str(uuid.UUID(int=rng.getrandbits(128)))[9:] for _ in range(2)
        )

    def example(self) -> _Example:
        before = self._before()
        is_renamed = self._rng.random() < 0.1
        asked = self._asked(before)
        number = self._rng.randrange(STATEMENTS)
        return _Example(before, is_renamed, asked, self._meanwhile(), number)

    def _spelled(self, name: str, chance: float) -> str:
        return name.upper() if self._rng.random() < chance else name

    def _allocations(self) -> dict[str, dict[str, int]]:
        chosen = self._rng.sample(self._providers, self._rng.choice((1, 1, 2)))
        return {each: {"VCPU": self._rng.choice((1, 2, 7))} for each in chosen}

    def _post(self, name: str, generation: int | None) -> _Asked:
        return _Asked("POST", "/allocations", {name: _request(self._allocations(), generation)})

    def _delete(self, name: str) -> _Asked:
        return _Asked("DELETE", f"/allocations/{name}", None)

    def _before(self) -> tuple[_Asked, ...]:
        found = []
        if self._rng.random() < 0.75:
            found.append(self._post(self._spelled(self._first, 0.2), None))
        if self._rng.random() < 0.3:
            found.append(self._post(self._second, None))
        return tuple(found)

    def _one(self, name: str, before: Sequence[_Asked]) -> dict[str, Any]:
        """Return what is asked for a consumer, mostly with the generation that it has."""
        known = {each.lower() for asked in before for each in asked.body}
        generation = 1 if name.lower() in known and self._rng.random() < 0.9 else None
        return _request({} if self._rng.random() < 0.5 else self._allocations(), generation)

    def _asked(self, before: Sequence[_Asked]) -> _Asked:
        kind = self._rng.choice(("POST", "POST", "PUT", "reshape"))
        if kind == "PUT":
            return _Asked("PUT", f"/allocations/{self._first}", self._one(self._first, before))
        names = [self._spelled(self._first, 0.2)]
        if self._rng.random() < 0.4:
            names.append(self._second)
        if self._rng.random() < 0.2:
            names.append(self._first.upper())
        body = {name: self._one(name, before) for name in names}
        if kind == "reshape":
            inventories = self._inventories(before)
            return _Asked("POST", "/reshaper", {"inventories": inventories, "allocations": body})
        if self._rng.random() < 0.7:
            return _Asked("POST", "/allocations", body)
        for each in body.values():
            del each["consumer_generation"], each["consumer_type"]
        return _Asked("POST", "/allocations", body, "1.27")

    def _inventories(self, before: Sequence[_Asked]) -> dict[str, Any]:
        provider = self._providers[0]
        raised = sum(provider in each["allocations"] for a in before for each in a.body.values())
        return {
            provider: {
                "resource_provider_generation": 1 + raised,
                "inventories": {"VCPU": {"total": ROOM}},
            }
        }

    def _meanwhile(self) -> tuple[_Asked, ...]:
        first, upper = self._first, self._first.upper()
        made_again = (self._delete(first), self._post(upper, None))
        return self._rng.choice(
            (
                made_again,
                made_again,
                (*made_again, self._delete(first), self._post(first, None)),
                (self._delete(first), self._post(first, None)),
                (self._delete(first),),
                (self._delete(first), self._delete(self._second)),
                (self._post(first, None),),
                (self._post(upper, None),),
                (self._post(self._spelled(first, 0.3), 1),),
            )
        )


class DrawnTest(InterleavedCase):
    """What comes of it could have come of the two one after the other, or the request is refused.

    It fails, as Placement does over a name in another case, only where that is so before it reads.
    """

    def send(self, asked: _Asked) -> placement_process.Answer:
        return self.placement.call(asked.method, asked.path, asked.body, asked.version)

    def prepare(self, example: _Example, providers: Sequence[str]) -> None:
        placement_histories.empty(self.fixture.engine)
        for name in providers:
            self.send(_Asked("POST", "/resource_providers", {"name": name, "uuid": name}))
            self.placement.set_inventories(name, 0, {"VCPU": ROOM})
        for each in example.before:
            self.assertEqual(204, self.send(each).status)
        if example.is_renamed:
            with self.fixture.engine.begin() as connection:
                uuids = consumer_obj.CONSUMER_TBL.c.uuid
                connection.execute(
                    consumer_obj.CONSUMER_TBL.update().values(uuid=sa.func.upper(uuids))
                )

    def held(self) -> dict[str, list[Any]]:
        """What there is, whatever case a record made of two names is in."""
        found = placement_histories.tables(self.fixture.engine)
        # Not generations of providers: there may be nothing left to remove of one.
        return {
            name: sorted(((each.lower(), *more) for each, *more in found[name]), key=repr)
            for name in ("consumers", "allocations")
        }

    def test_it_is_as_if_one_came_after_the_other(self) -> None:
        statuses: collections.Counter[tuple[str, int]] = collections.Counter()
        for seed in range(FIRST, FIRST + EXAMPLES):
            rng = random.Random(seed)
            providers = sorted(str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(2))
            example = _Draw(rng, providers).example()

            def other(example: _Example = example) -> list[int]:
                return [self.send(each).status for each in example.meanwhile]

            self.prepare(example, providers)
            with self.before_statement(example.number, other, LOCKED_SECONDS) as begun:
                answer = self.send(example.asked)
                is_waited_for = not all(each.done() for each in begun)
            if not begun:
                other()
            found = answer.status, self.held()
            told = f"seed {seed}: {example}: {answer}"
            statuses["waited for" if is_waited_for else "meanwhile", answer.status] += 1

            self.prepare(example, providers)
            status = self.send(example.asked).status
            other()
            earlier = status, self.held()
            self.prepare(example, providers)
            other()
            alone = self.held()
            later = self.send(example.asked).status, self.held()

            if answer.status == 500 and example.number:
                self.assertEqual(500, earlier[0], told)
            if is_waited_for or example.names_one_twice:
                continue
            if answer.status == 204:
                self.assertIn(found, (earlier, later), told)
            else:
                self.assertEqual((answer.status, alone), found, told)
        if "NODB_PROPERTY_EXAMPLES" in os.environ:
            os.write(2, f"{self.id()}: from seed {FIRST}: {dict(statuses)}\n".encode())


class PostgreSQLDrawnTest(DrawnTest):
    database = servers.PostgreSQL
