# SPDX-License-Identifier: Apache-2.0
"""What a guarded Placement writes, and refuses, over real databases; stock beside it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any
from unittest import mock

import pymysql
import sqlalchemy as sa
import testtools
from placement import context
from placement.objects import allocation, resource_provider
from placement.objects import consumer as consumer_obj
from sqlalchemy.engine import make_url

from nova_nodb_scheduler.placement_adapter import guard_header, guarded_write
from nova_nodb_scheduler.testing import servers
from tests import counted_calls
from tests.functional.placement_adapter import placement_process

WAIT_SECONDS = 60.0
_request = placement_process.request


def _uuids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


class GuardedCase(testtools.TestCase):
    database: type[servers.MariaDB] | type[servers.PostgreSQL] = servers.MariaDB
    guarded = True

    def setUp(self) -> None:
        super().setUp()
        self.url = self.useFixture(self.database(prepare=placement_process.prepare)).url
        self.fixture = self.useFixture(
            placement_process.PlacementOver(self.url, guarded=self.guarded)
        )
        self.placement = self.fixture.application

    @contextlib.contextmanager
    def statements(self) -> Iterator[list[str]]:
        """Collect what is sent, but for beginnings and ends of transactions and pings."""
        seen: list[str] = []

        def sent(_c: Any, _cursor: Any, statement: str, values: Any, *_rest: Any) -> None:
            # Of the drivers only PyMySQL makes one statement of several rows.
            one = not isinstance(values, list) or self.database is servers.MariaDB
            if statement != "SELECT 1":
                seen.extend([statement] * (1 if one else len(values)))

        sa.event.listen(self.fixture.engine, "before_cursor_execute", sent)
        try:
            yield seen
        finally:
            sa.event.remove(self.fixture.engine, "before_cursor_execute", sent)

    def consumers_of(self, provider: str) -> dict[str, int]:
        """The consumers of a provider, with their generations."""
        body = self.placement.call("GET", f"/resource_providers/{provider}/allocations").body
        return {name: each["consumer_generation"] for name, each in body["allocations"].items()}

    def consumer_records(self) -> int:
        with self.fixture.engine.connect() as connection:
            return connection.execute(sa.text("SELECT count(*) FROM consumers")).scalar_one()

    def allocate_without_records(self, provider: str, *consumers: str) -> None:
        """Have allocations of before Placement kept consumers, where nobody has migrated them."""
        with self.fixture.engine.begin() as connection:
            for consumer in consumers:
                connection.execute(
                    allocation._ALLOC_TBL.insert().values(
                        resource_provider_id=sa.select(allocation._RP_TBL.c.id)
                        .where(allocation._RP_TBL.c.uuid == provider)
                        .scalar_subquery(),
                        resource_class_id=0,
                        consumer_id=consumer,
                        used=2,
                    )
                )


class StatementsTest(GuardedCase):
    """Their number is that of the steps, whatever the number of consumers."""

    #: What is named is read; the providers locked; they are read; consumers and allocations made.
    of_new = 5
    #: The same, but for consumers: what was used, what goes, generations.
    of_known = 7
    locks = r"(?s)UPDATE resource_providers .*generation \+ 1.*ORDER BY id"

    def counted(self, count: int, *, again: bool = False) -> list[str]:
        """Post new consumers, twice if they are to be there; the last one's statements."""
        providers = [self.placement.provider(VCPU=1000, MEMORY_MB=1000) for _ in range(3)]
        names = _uuids(count)

        def asked(generation: int | None) -> dict[str, Any]:
            return {
                name: _request(
                    {providers[number % 3]: {"VCPU": 1, "MEMORY_MB": 1}}, generation, project="p"
                )
                for number, name in enumerate(names)
            }

        # Project, user and type of consumer are there.
        first = {str(uuid.uuid4()): _request({providers[0]: {"VCPU": 1}}, project="p")}
        self.assertEqual(204, self.placement.post(first).status)
        if again:
            self.assertEqual(204, self.placement.post(asked(None)).status)
        with self.statements() as seen:
            answer = self.placement.post(asked(1 if again else None))
        self.assertEqual(204, answer.status, answer)
        for provider in providers:
            self.assertEqual(
                sum(generation == 1 + again for generation in self.consumers_of(provider).values()),
                len(self.consumers_of(provider)) - (provider == providers[0] and again),
            )
        return seen

    def test_a_request_for_new_consumers_has_as_many_for_one_as_for_fifty(self) -> None:
        # One row is written for one consumer more by name alone: the same statements.
        kinds = [[each.split()[0] for each in self.counted(count)] for count in (3, 10, 50)]
        self.assertEqual(kinds[0], kinds[1])
        self.assertEqual(kinds[0], kinds[2])
        self.assertEqual(len(kinds[0]), len([each.split()[0] for each in self.counted(1)]))
        self.assertEqual(self.of_new, len(kinds[0]), kinds[0])

    def test_so_has_one_for_consumers_that_are_there(self) -> None:
        kinds = [
            [each.split()[0] for each in self.counted(count, again=True)] for count in (1, 10, 50)
        ]
        self.assertEqual(kinds[0], kinds[1])
        self.assertEqual(kinds[0], kinds[2])
        self.assertEqual(self.of_known, len(kinds[0]), kinds[0])

    def test_so_has_a_removal(self) -> None:
        found = []
        for count in (1, 10, 50):
            provider = self.placement.provider(VCPU=1000)
            names = _uuids(count)
            body = {name: _request({provider: {"VCPU": 1}}) for name in names}
            self.assertEqual(204, self.placement.post(body).status)
            with self.statements() as seen:
                answer = self.placement.post({name: _request({}, 1) for name in names})
            self.assertEqual(204, answer.status, answer)
            self.assertEqual({}, self.placement.usages(provider))
            found.append([each.split()[0] for each in seen])
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])
        self.assertEqual(0, self.consumer_records())

    def test_the_first_of_the_transaction_that_writes_locks_the_providers(self) -> None:
        begun: list[list[str]] = []

        def begin(_connection: Any) -> None:
            begun.append([])

        def sent(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            begun[-1].append(statement)

        engine = self.fixture.engine
        provider = self.placement.provider(VCPU=10)
        sa.event.listen(engine, "begin", begin)
        sa.event.listen(engine, "before_cursor_execute", sent)
        self.addCleanup(sa.event.remove, engine, "begin", begin)
        self.addCleanup(sa.event.remove, engine, "before_cursor_execute", sent)
        body = {str(uuid.uuid4()): _request({provider: {"VCPU": 1}})}
        self.assertEqual(204, self.placement.post(body).status)
        writing = [each for each in begun if any("INTO allocations" in text for text in each)]
        self.assertEqual(1, len(writing), begun)
        first, *others = [text for text in writing[0] if text != "SELECT 1"]
        self.assertRegex(first, self.locks)
        self.assertFalse([text for text in others if "FOR UPDATE" in text])


class PostgreSQLStatementsTest(StatementsTest):
    """It changes rows in an order of its own: they are locked before."""

    database = servers.PostgreSQL
    of_new = 6
    of_known = 8
    locks = r"(?s)FROM resource_providers.*ORDER BY.*FOR NO KEY UPDATE"


class SentTest(GuardedCase):
    """The server's own count: what a driver sends, beginnings, ends and pings included."""

    def questions(self, count: int) -> int:
        provider = self.placement.provider(VCPU=1000)
        url = make_url(self.url)
        body = {name: _request({provider: {"VCPU": 1}}) for name in _uuids(count)}
        observer = pymysql.connect(host=url.host, port=url.port, user=url.username)
        with observer, observer.cursor() as cursor:

            def counter() -> int:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
                return int(cursor.fetchall()[0][1])

            before = counter()
            self.assertEqual(204, self.placement.post(body).status)
            return counter() - before - 1

    def test_as_much_is_sent_for_fifty_consumers_as_for_one(self) -> None:
        self.questions(1)
        self.assertEqual(*[self.questions(count) for count in (1, 50)])


class CallsTest(GuardedCase):
    """How many functions Placement's process calls: what of its time nothing else moves."""

    def counted(self, count: int) -> int:
        providers = [self.placement.provider(VCPU=1000) for _ in range(count)]

        def post() -> None:
            body = {
                name: _request({each: {"VCPU": 1}})
                for name, each in zip(_uuids(count), providers, strict=True)
            }
            self.assertEqual(204, self.placement.post(body).status)

        post()
        return counted_calls.count(post)

    def test_a_request_for_one_server_has_few(self) -> None:
        self.assertLessEqual(self.counted(1), 5_100)

    def test_one_server_more_has_few_more(self) -> None:
        self.assertLessEqual((self.counted(50) - self.counted(1)) / 49, 500)


class MixedCollationsTest(GuardedCase):
    """As in a database that was converted table by table."""

    def test_what_is_named_is_found_all_the_same(self) -> None:
        provider, consumer = self.placement.provider(VCPU=10), _uuids(1)[0]
        with self.fixture.engine.begin() as connection:
            for table, kind in (
                ("projects", "latin1"),
                ("consumers", "utf8mb4 COLLATE utf8mb4_bin"),
                ("resource_providers", "utf8mb3 COLLATE utf8mb3_general_ci"),
            ):
                connection.execute(sa.text(f"ALTER TABLE {table} CONVERT TO CHARACTER SET {kind}"))
        for generation in (None, 1):
            body = {consumer: _request({provider: {"VCPU": 1}}, generation)}
            answer = self.placement.post(body)
            self.assertEqual(204, answer.status, answer)
        self.assertEqual({provider: {"VCPU": 1}}, self.placement.held(consumer))


class WritesTest(GuardedCase):
    def test_every_answer_says_that_it_is_guarded(self) -> None:
        self.assertTrue(guard_header.is_in(self.placement.call("GET", "/").headers))

    def test_a_refused_request_leaves_no_consumer(self) -> None:
        provider = self.placement.provider(VCPU=1)
        for body, status in (
            ({name: _request({provider: {"VCPU": 1}}) for name in _uuids(2)}, 409),
            ({name: _request({_uuids(1)[0]: {"VCPU": 1}}) for name in _uuids(2)}, 400),
        ):
            self.assertEqual(status, self.placement.post(body).status)
        self.assertEqual(0, self.consumer_records())

    def test_the_first_class_of_the_request_that_is_unknown_is_named(self) -> None:
        provider = self.placement.provider(VCPU=1)
        asked = {"CUSTOM_SECOND": 1, "CUSTOM_FIRST": 1}
        answer = self.placement.post({_uuids(1)[0]: _request({provider: asked})})
        self.assertEqual(400, answer.status)
        self.assertIn("No such resource class CUSTOM_SECOND", answer.body["errors"][0]["detail"])

    def test_allocations_without_a_record_of_their_consumer_are_replaced(self) -> None:
        provider = self.placement.provider(VCPU=4)
        kept, emptied = _uuids(2)
        self.allocate_without_records(provider, kept, emptied)
        body = {kept: _request({provider: {"VCPU": 3}}), emptied: _request({})}
        answer = self.placement.post(body)
        self.assertEqual(204, answer.status, answer)
        self.assertEqual({"VCPU": 3}, self.placement.usages(provider))
        self.assertEqual(1, self.consumer_records())

    def test_they_are_removed_where_it_is_put_to_nothing(self) -> None:
        provider = self.placement.provider(VCPU=4)
        consumer, other = _uuids(2)
        self.allocate_without_records(provider, consumer, other)
        answer = self.placement.call("PUT", f"/allocations/{consumer}", _request({}))
        self.assertEqual(204, answer.status, answer)
        self.assertEqual({"VCPU": 2}, self.placement.usages(provider))
        # A refused one makes no record either.
        for body, status in (
            (_request({provider: {"VCPU": 5}}), 409),
            (_request({_uuids(1)[0]: {"VCPU": 1}}), 400),
        ):
            answer = self.placement.call("PUT", f"/allocations/{other}", body)
            self.assertEqual(status, answer.status, answer)
        self.assertEqual(0, self.consumer_records())

    def test_what_is_asked_of_a_consumer_that_is_there_is_written_with_its_allocations(
        self,
    ) -> None:
        provider = self.placement.provider(VCPU=10)
        names = _uuids(3)
        body = {name: _request({provider: {"VCPU": 1}}) for name in names}
        self.assertEqual(204, self.placement.post(body).status)
        changed = {"project": "other", "user": "another", "kind": "MIGRATION"}
        body = {name: _request({provider: {"VCPU": 2}}, 1, **changed) for name in names[:2]}
        self.assertEqual(204, self.placement.post(body).status)
        held = self.placement.call("GET", f"/allocations/{names[1]}").body
        self.assertEqual(
            ("other", "another", "MIGRATION", 2),
            tuple(
                held[name]
                for name in ("project_id", "user_id", "consumer_type", "consumer_generation")
            ),
        )
        # A refusal changes nothing of them.
        body = {name: _request({provider: {"VCPU": 20}}, 2, project="third") for name in names[:2]}
        self.assertEqual(409, self.placement.post(body).status)
        held = self.placement.call("GET", f"/allocations/{names[1]}").body
        self.assertEqual("other", held["project_id"])

    def test_one_of_several_that_has_another_generation_refuses_all(self) -> None:
        provider = self.placement.provider(VCPU=10)
        names = _uuids(2)
        self.assertEqual(
            204, self.placement.post({names[0]: _request({provider: {"VCPU": 1}})}).status
        )
        answer = self.placement.post(
            {name: _request({provider: {"VCPU": 1}}, None) for name in names}
        )
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual({names[0]: 1}, self.consumers_of(provider))

    def test_a_consumer_is_moved_between_providers_in_one_request(self) -> None:
        source, target = (self.placement.provider(VCPU=10) for _ in range(2))
        instance, migration = _uuids(2)
        self.assertEqual(
            204, self.placement.post({instance: _request({source: {"VCPU": 1}})}).status
        )
        body = {
            migration: _request({source: {"VCPU": 1}}, kind="MIGRATION"),
            instance: _request({target: {"VCPU": 1}}, 1),
        }
        self.assertEqual(204, self.placement.post(body).status)
        self.assertEqual({migration: 1}, self.consumers_of(source))
        self.assertEqual({instance: 2}, self.consumers_of(target))

    def test_a_reshape_moves_inventory_and_allocations(self) -> None:
        old, new = self.placement.provider(VCPU=10, DISK_GB=5), self.placement.provider()
        consumer = _uuids(1)[0]
        body = {consumer: _request({old: {"VCPU": 1, "DISK_GB": 5}})}
        self.assertEqual(204, self.placement.post(body).status)
        reshape = {
            "inventories": {
                name: {
                    "resource_provider_generation": self.placement.generation(name),
                    "inventories": inventories,
                }
                for name, inventories in (
                    (old, {"VCPU": {"total": 10}}),
                    (new, {"DISK_GB": {"total": 5}}),
                )
            },
            "allocations": {consumer: _request({old: {"VCPU": 1}, new: {"DISK_GB": 5}}, 1)},
        }
        answer = self.placement.call("POST", "/reshaper", reshape)
        self.assertEqual(204, answer.status, answer)
        self.assertEqual({old: {"VCPU": 1}, new: {"DISK_GB": 5}}, self.placement.held(consumer))
        # The generations that it gives are of before.
        answer = self.placement.call("POST", "/reshaper", reshape)
        self.assertEqual(409, answer.status)

    def test_who_calls_placements_function_gets_the_ids_of_what_was_written(self) -> None:
        name, consumer = self.placement.provider(VCPU=10), _uuids(1)[0]
        self.assertEqual(204, self.placement.post({consumer: _request({name: {"VCPU": 1}})}).status)
        ctx = context.RequestContext(config=self.fixture.conf)
        written = allocation.Allocation(
            resource_provider=resource_provider.ResourceProvider.get_by_uuid(ctx, name),
            consumer=consumer_obj.Consumer.get_by_uuid(ctx, consumer),
            resource_class="VCPU",
            used=2,
        )
        allocation.replace_all(ctx, [written])
        [held] = allocation.get_all_by_consumer_id(ctx, consumer)
        self.assertEqual((held.id, 2), (written.id, held.used))

    def test_a_class_that_was_made_again_is_known_by_its_new_id(self) -> None:
        """What a process knows of classes is of those that nobody removes."""
        held = []
        for _ in range(2):
            self.assertEqual(
                201, self.placement.call("PUT", "/resource_classes/CUSTOM_GOLD").status
            )
            provider, consumer = self.placement.provider(VCPU=4, CUSTOM_GOLD=4), _uuids(1)[0]
            body = {consumer: _request({provider: {"VCPU": 1, "CUSTOM_GOLD": 1}})}
            self.assertEqual(204, self.placement.post(body).status)
            self.assertEqual(
                {provider: {"VCPU": 1, "CUSTOM_GOLD": 1}}, self.placement.held(consumer)
            )
            with self.fixture.engine.connect() as connection:
                table = allocation._ALLOC_TBL
                query = sa.select(table.c.resource_class_id).where(table.c.consumer_id == consumer)
                held.append(max(connection.execute(query).scalars()))
            for path in (
                f"/allocations/{consumer}",
                f"/resource_providers/{provider}",
                "/resource_classes/CUSTOM_GOLD",
            ):
                self.assertEqual(204, self.placement.call("DELETE", path).status)
            # So that the id is not given again.
            self.placement.call("PUT", "/resource_classes/CUSTOM_SILVER")
        self.assertNotEqual(*held)

    def test_a_write_needs_one_connection_at_a_time(self) -> None:
        """That of Placement's handler, which begins one and sends nothing, has none."""
        provider = self.placement.provider(VCPU=10)
        out: list[int] = []
        engine = self.fixture.engine

        def checked_out(*_any: Any) -> None:
            out.append(engine.pool.checkedout())

        sa.event.listen(engine, "checkout", checked_out)
        self.addCleanup(sa.event.remove, engine, "checkout", checked_out)
        body = {str(uuid.uuid4()): _request({provider: {"VCPU": 1}})}
        self.assertEqual(204, self.placement.post(body).status)
        self.assertEqual({1}, set(out))


class PostgreSQLWritesTest(WritesTest):
    database = servers.PostgreSQL


class OtherCaseTest(GuardedCase):
    """A consumer that a request names in another case than its record, where there is none."""

    def answers(self, *kinds: tuple[bool, int | None, str]) -> list[tuple[int, str]]:
        """Make a consumer of generation 1, then post for it in upper case; what is said.

        :param kinds: whether anything is allocated; the generation told; the microversion
        """
        self.provider = self.placement.provider(VCPU=10)
        self.consumer = "abcdef00-" + _uuids(1)[0][9:]
        made = self.placement.post({self.consumer: self.body({"VCPU": 1}, None)})
        self.assertEqual(204, made.status, made)
        found = []
        for is_kept, generation, version in kinds:
            body = self.body({"VCPU": 2} if is_kept else {}, generation, version)
            answer = self.placement.post({self.consumer.upper(): body}, version)
            detail = answer.body["errors"][0]["detail"].split("\n")[-1].strip()
            found.append((answer.status, detail.replace(self.consumer, "CONSUMER")))
            self.assertEqual({"VCPU": 1}, self.placement.usages(self.provider))
            self.assertEqual({self.consumer: 1}, self.consumers_of(self.provider))
        return found

    def body(
        self, wanted: dict[str, int], generation: int | None, version: str = "1.38", **more: Any
    ) -> dict[str, Any]:
        asked = _request({self.provider: wanted} if wanted else {}, generation, **more)
        if version == "1.27":
            del asked["consumer_generation"], asked["consumer_type"]
        return asked

    def test_is_told_its_generation_and_then_refused(self) -> None:
        conflict = "consumer generation conflict - expected 1 but got "
        self.assertEqual(
            [
                (409, conflict + "3"),
                (409, conflict + "None"),
                (500, "'CONSUMER'"),
                (500, "'CONSUMER'"),
                (500, "'CONSUMER'"),
            ],
            self.answers(
                (True, 3, "1.38"),
                (True, None, "1.38"),
                (True, 1, "1.38"),
                (False, 1, "1.38"),
                (True, None, "1.27"),
            ),
        )

    def test_in_both_cases_it_has_what_is_asked_under_the_name_of_its_record(self) -> None:
        self.answers()
        upper = self.body({"VCPU": 2}, 1, project="upper")
        lower = self.body({"VCPU": 3}, 1, project="lower")
        answer = self.placement.post({self.consumer.upper(): upper, self.consumer: lower})
        self.assertEqual(204, answer.status, answer)
        self.assertEqual({"VCPU": 5}, self.placement.usages(self.provider))
        self.assertEqual({self.consumer: 2}, self.consumers_of(self.provider))
        held = self.placement.call("GET", f"/allocations/{self.consumer}").body
        self.assertEqual("lower", held["project_id"])

    def new(self, second: int | None, version: str) -> tuple[int, list[tuple[str, int]], int]:
        """Post for a new consumer in two cases; the status, what there is then, what is used.

        :param second: the generation told under its second name
        """
        self.provider = self.placement.provider(VCPU=10)
        name = "abcdef00-" + _uuids(1)[0][9:]
        first = self.body({"VCPU": 2}, None, version, project="first")
        other = self.body({"VCPU": 3}, second, version, project="other")
        answer = self.placement.post({name.upper(): first, name: other}, version)
        made = [
            ("upper" if each == name.upper() else each, generation)
            for each, generation in self.consumers_of(self.provider).items()
        ]
        self.assertEqual(len(made), self.consumer_records())
        if made:
            held = self.placement.call("GET", f"/allocations/{name.upper()}").body
            self.assertEqual("first", held["project_id"])
        return answer.status, made, self.placement.usages(self.provider).get("VCPU", 0)

    def test_a_new_one_in_both_cases_is_made_by_the_first(self) -> None:
        self.assertEqual((204, [("upper", 1)], 5), self.new(None, "1.27"))

    def test_the_second_name_of_a_new_one_has_to_know_what_the_first_made(self) -> None:
        self.assertEqual((204, [("upper", 1)], 5), self.new(0, "1.38"))

    def test_a_new_one_in_both_cases_without_a_generation_is_refused(self) -> None:
        self.assertEqual((409, [], 0), self.new(None, "1.38"))

    def test_allocations_without_a_record_are_its_own_too(self) -> None:
        self.provider = self.placement.provider(VCPU=10)
        for wanted in ({}, {"VCPU": 3}):
            consumer = "abcdef00-" + _uuids(1)[0][9:]
            self.allocate_without_records(self.provider, consumer)
            self.assertEqual({"VCPU": 2}, self.placement.usages(self.provider))
            answer = self.placement.post({consumer.upper(): self.body(wanted, None)})
            self.assertEqual(204, answer.status, answer)
            self.assertEqual(wanted, self.placement.usages(self.provider))
            self.assertEqual(len(wanted), self.consumer_records())

    def test_allocations_in_another_case_than_its_record_are_its_own_too(self) -> None:
        """As Placement leaves it where it refuses allocations of one that had no record."""
        self.provider = self.placement.provider(VCPU=10)
        for wanted in ({}, {"VCPU": 3}):
            consumer = "abcdef00-" + _uuids(1)[0][9:]
            made = self.placement.post({consumer.upper(): self.body({"VCPU": 2}, None)})
            self.assertEqual(204, made.status, made)
            with self.fixture.engine.begin() as connection:
                connection.execute(allocation._ALLOC_TBL.update().values(consumer_id=consumer))
            answer = self.placement.post({consumer.upper(): self.body(wanted, 1)})
            self.assertEqual(204, answer.status, answer)
            self.assertEqual(wanted, self.placement.usages(self.provider))
            self.assertEqual(len(wanted), self.consumer_records())

    def test_a_new_one_whose_name_ends_a_line_is_kept_without_that(self) -> None:
        """Placement's pattern lets it pass, and the column has no room for it."""
        self.provider = self.placement.provider(VCPU=10)
        name = _uuids(1)[0]
        answer = self.placement.post({name + "\n": self.body({"VCPU": 1}, None)})
        self.assertEqual(204, answer.status, answer)
        self.assertEqual({name: 1}, self.consumers_of(self.provider))

    def test_one_that_is_there_is_not_found_by_a_name_that_ends_a_line(self) -> None:
        self.provider = self.placement.provider(VCPU=10)
        name = _uuids(1)[0]
        made = self.placement.post({name: self.body({"VCPU": 1}, None)})
        self.assertEqual(204, made.status, made)
        for wanted in ({"VCPU": 2}, {}):
            answer = self.placement.post({name + "\n": self.body(wanted, None)})
            self.assertEqual(404, answer.status, answer)
        self.assertEqual({"VCPU": 1}, self.placement.usages(self.provider))

    def test_a_new_one_named_with_an_end_of_line_and_without_is_one(self) -> None:
        self.provider = self.placement.provider(VCPU=10)
        name = _uuids(1)[0]
        asked = {name + "\n": self.body({"VCPU": 1}, None), name: self.body({"VCPU": 2}, 0)}
        answer = self.placement.post(asked)
        self.assertEqual(204, answer.status, answer)
        self.assertEqual({name: 1}, self.consumers_of(self.provider))
        self.assertEqual({"VCPU": 3}, self.placement.usages(self.provider))


class StockOtherCaseTest(OtherCaseTest):
    guarded = False


class OddValuesTest(GuardedCase):
    """What the schemas let pass and Placement cannot write."""

    def test_an_amount_with_a_point_is_none_where_something_is_used(self) -> None:
        """MariaDB's sums are decimals, which Python adds to no float."""
        provider = self.placement.provider(VCPU=10)
        first, second = _uuids(2)
        made = self.placement.post({first: _request({provider: {"VCPU": 1}})})
        self.assertEqual(204, made.status, made)
        whole: Any = 1.0
        answer = self.placement.post({second: _request({provider: {"VCPU": whole}})})
        self.assertEqual(500, answer.status, answer)
        self.assertEqual({"VCPU": 1}, self.placement.usages(provider))

    def test_what_is_wrong_with_a_consumer_before_it_is_said(self) -> None:
        provider = self.placement.provider(VCPU=10)
        first, second = _uuids(2)
        wrong = _request({provider: {"VCPU": 1}}, 3)
        unsendable = _request({provider: {"VCPU": 1}}, project="\ud800")
        answer = self.placement.post({first: wrong, second: unsendable})
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))

    def test_nothing_is_written_where_it_is_all_that_is_wrong(self) -> None:
        provider = self.placement.provider(VCPU=10)
        first, second = _uuids(2)
        asked = _request({provider: {"VCPU": 1}})
        unsendable = _request({provider: {"VCPU": 1}}, project="\ud800")
        answer = self.placement.post({first: asked, second: unsendable})
        self.assertEqual(500, answer.status, answer)
        self.assertEqual({}, self.placement.usages(provider))
        self.assertEqual(0, self.consumer_records())


class StockOddValuesTest(OddValuesTest):
    guarded = False


class ConflictsTest(GuardedCase):
    """Another one is in the way."""

    def started(self, call: Callable[[], Any]) -> futures.Future[Any]:
        pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(call)

    def ids(self, *providers: str) -> list[int]:
        table = allocation._RP_TBL
        with self.fixture.engine.connect() as connection:
            return [
                connection.execute(sa.select(table.c.id).where(table.c.uuid == each)).scalar_one()
                for each in providers
            ]

    def lock(self, connection: Any, provider: int) -> None:
        table = allocation._RP_TBL
        connection.execute(
            table.update().where(table.c.id == provider).values(name=str(uuid.uuid4()))
        )

    @contextlib.contextmanager
    def waiting(self) -> Iterator[threading.Event]:
        """Tell when somebody is about to lock providers."""
        arrived = threading.Event()
        own = guarded_write._lock_providers

        def lock(*args: Any, **how: Any) -> Any:
            arrived.set()
            return own(*args, **how)

        with mock.patch.object(guarded_write, "_lock_providers", lock):
            yield arrived

    def test_what_another_has_taken_is_not_there_any_more(self) -> None:
        """Who waited for the lock sees what was written meanwhile."""
        provider = self.placement.provider(VCPU=10)
        self.check_waits(provider, {_uuids(1)[0]: _request({provider: {"VCPU": 6}})})

    def test_nor_is_it_for_one_whose_names_only_the_database_can_tell_apart(self) -> None:
        provider = self.placement.provider(VCPU=10)
        name = "abcdef00-" + _uuids(1)[0][9:]
        body = {each: _request({provider: {"VCPU": 3}}) for each in (name, name.upper())}
        for each in body.values():
            del each["consumer_generation"], each["consumer_type"]
        self.check_waits(provider, body, "1.27")

    def check_waits(
        self, provider: str, body: dict[str, Any], version: str = placement_process.VERSION
    ) -> None:
        """Post for 6 VCPUs of a provider's 10 while another takes 6 of them."""
        first = _uuids(1)[0]
        [number] = self.ids(provider)
        with self.fixture.engine.connect() as other, self.waiting() as arrived:
            self.lock(other, number)
            asked = self.started(lambda: self.placement.post(body, version))
            self.assertTrue(arrived.wait(WAIT_SECONDS))
            # Wherever it waits: what it has read by then it has read too early.
            self.until_somebody_waits()
            other.execute(
                allocation._ALLOC_TBL.insert().values(
                    resource_provider_id=number, resource_class_id=0, consumer_id=first, used=6
                )
            )
            other.commit()
            answer = asked.result(WAIT_SECONDS)
        self.assertEqual(409, answer.status)
        self.assertEqual({"VCPU": 6}, self.placement.usages(provider))
        self.assertEqual(0, self.consumer_records())

    def test_rows_that_a_request_does_not_name_are_not_waited_for(self) -> None:
        """Also where it names a good part of the tables, which MySQL would scan."""
        names = sorted(_uuids(16))  # in the order of which their records are made
        providers = [self.placement.provider(VCPU=10) for _ in names]
        for generation in (None, 1):
            body = {
                name: _request({provider: {"VCPU": 1}}, generation, project=f"of {generation}")
                for name, provider in zip(names, providers, strict=True)
            }
            if generation is None:
                self.assertEqual(204, self.placement.post(body).status)
        with self.fixture.engine.connect() as other, self.waiting() as arrived:
            for table in (allocation._RP_TBL, allocation._CONSUMER_TBL, allocation._ALLOC_TBL):
                ids = sorted(other.execute(sa.select(table.c.id)).scalars())
                for each in ids[8:]:
                    query = sa.select(table.c.id).where(table.c.id == each)
                    other.execute(query.with_for_update()).one()
            asked = self.started(
                lambda: self.placement.post({name: body[name] for name in names[:8]})
            )
            self.assertTrue(arrived.wait(WAIT_SECONDS))
            done, _waiting = futures.wait([asked], timeout=20.0)
            other.rollback()
        answer = asked.result(WAIT_SECONDS)
        self.assertEqual(204, answer.status, answer)
        self.assertTrue(done, "it waited for rows of others")

    def test_a_deadlock_is_tried_again(self) -> None:
        providers = [self.placement.provider(VCPU=10) for _ in range(2)]
        low, high = self.ids(*providers)
        body = {str(uuid.uuid4()): _request({name: {"VCPU": 1} for name in providers})}
        with self.fixture.engine.connect() as other, self.waiting() as arrived:
            # It has changed more, so it is not the one that is ended.
            self.lock(other, high)
            asked = self.started(lambda: self.placement.post(body))
            self.assertTrue(arrived.wait(WAIT_SECONDS))
            arrived.clear()
            self.until_locked(low)
            self.lock(other, low)
            self.assertTrue(arrived.wait(WAIT_SECONDS), "it was not tried again")
            other.commit()
            answer = asked.result(WAIT_SECONDS)
        self.assertEqual(204, answer.status, answer)
        for name in providers:
            self.assertEqual({"VCPU": 1}, self.placement.usages(name))

    #: Counts the transactions of the server that wait for a lock.
    waiters = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"

    def until_somebody_waits(self) -> None:
        # InnoDB makes what this table tells anew only where nobody has read it for 0.1 s:
        # who asks more often never hears anything else.
        for _ in range(120):
            with self.fixture.engine.connect() as connection:
                if connection.execute(sa.text(self.waiters)).scalar_one():
                    return
            threading.Event().wait(0.25)
        self.fail("nobody waits")

    def until_locked(self, provider: int) -> None:
        """Wait until somebody has locked a provider's row."""
        table = allocation._RP_TBL
        query = sa.select(table.c.id).where(table.c.id == provider).with_for_update(nowait=True)
        for _ in range(600):
            with self.fixture.engine.connect() as connection:
                try:
                    connection.execute(query)
                except Exception:
                    return
            threading.Event().wait(0.05)
        self.fail("nobody locked it")

    def test_a_lock_that_is_not_had_is_placements_own_refusal(self) -> None:
        provider = self.placement.provider(VCPU=10)
        [number] = self.ids(provider)

        def impatient(connection: Any, _record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")

        engine = self.fixture.engine
        sa.event.listen(engine, "connect", impatient)
        self.addCleanup(sa.event.remove, engine, "connect", impatient)
        engine.dispose()
        body = {str(uuid.uuid4()): _request({provider: {"VCPU": 1}})}
        with (
            self.fixture.engine.connect() as other,
            mock.patch.object(guarded_write, "MOST_SECONDS", 0.5),
        ):
            self.lock(other, number)
            answer = self.started(lambda: self.placement.post(body)).result(WAIT_SECONDS)
            other.rollback()
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual(0, self.consumer_records())

    def made_meanwhile(self, version: str, generation: dict[str, Any]) -> tuple[Any, str, str]:
        """Post for a consumer that another request makes after this one has seen none."""
        mine, others = (self.placement.provider(VCPU=10) for _ in range(2))
        consumer = _uuids(1)[0]
        body = {
            consumer: {
                "allocations": {mine: {"resources": {"VCPU": 1}}},
                "project_id": "project",
                "user_id": "user",
                **generation,
            }
        }
        own = guarded_write._lock_providers
        done: list[int] = []

        def lock(*args: Any, **how: Any) -> Any:
            if not done:
                done.append(0)
                made = self.started(
                    lambda: self.placement.post({consumer: _request({others: {"VCPU": 2}})})
                )
                done[0] = made.result(WAIT_SECONDS).status
            return own(*args, **how)

        with mock.patch.object(guarded_write, "_lock_providers", lock):
            answer = self.placement.post(body, version)
        self.assertEqual([204], done)
        return answer, consumer, others

    def changed_meanwhile(self, change: Callable[[str, str], int]) -> tuple[Any, str, str]:
        """Post for a consumer that is there, and that another request changes meanwhile."""
        mine, others = (self.placement.provider(VCPU=10) for _ in range(2))
        consumer = _uuids(1)[0]
        body = {consumer: _request({mine: {"VCPU": 1}})}
        self.assertEqual(204, self.placement.post(body).status)
        own = guarded_write._lock_providers
        done: list[int] = []

        def lock(*args: Any, **how: Any) -> Any:
            if not done:
                done.append(0)
                done[0] = self.started(lambda: change(consumer, others)).result(WAIT_SECONDS)
            return own(*args, **how)

        with mock.patch.object(guarded_write, "_lock_providers", lock):
            answer = self.placement.post({consumer: _request({mine: {"VCPU": 2}}, 1)})
        self.assertEqual([204], done)
        return answer, consumer, others

    def test_what_another_gave_a_consumer_meanwhile_stays(self) -> None:
        """What it held was read before the locks."""

        def change(consumer: str, others: str) -> int:
            return self.placement.post({consumer: _request({others: {"VCPU": 2}}, 1)}).status

        answer, consumer, others = self.changed_meanwhile(change)
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual({others: {"VCPU": 2}}, self.placement.held(consumer))

    def test_a_consumer_that_was_removed_meanwhile_stays_so(self) -> None:
        def change(consumer: str, _others: str) -> int:
            return self.placement.call("DELETE", f"/allocations/{consumer}").status

        answer, consumer, _others = self.changed_meanwhile(change)
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual({}, self.placement.held(consumer))
        self.assertEqual(0, self.consumer_records())

    def test_a_consumer_that_was_made_again_meanwhile_is_another(self) -> None:
        def change(consumer: str, others: str) -> int:
            self.placement.call("DELETE", f"/allocations/{consumer}")
            return self.placement.post({consumer: _request({others: {"VCPU": 2}})}).status

        answer, consumer, others = self.changed_meanwhile(change)
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual({others: {"VCPU": 2}}, self.placement.held(consumer))

    def test_a_consumer_that_another_made_meanwhile_is_not_taken_from_it(self) -> None:
        answer, consumer, others = self.made_meanwhile("1.28", {"consumer_generation": None})
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))
        self.assertEqual({others: {"VCPU": 2}}, self.placement.held(consumer))

    def test_before_generations_the_last_one_has_it_as_in_placement(self) -> None:
        answer, consumer, others = self.made_meanwhile("1.27", {})
        self.assertEqual(204, answer.status, answer)
        self.assertNotIn(others, self.placement.held(consumer))
        self.assertEqual({}, self.placement.usages(others))


class PostgreSQLConflictsTest(ConflictsTest):
    database = servers.PostgreSQL
    waiters = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def test_a_lock_that_is_not_had_is_placements_own_refusal(self) -> None:
        provider = self.placement.provider(VCPU=10)
        [number] = self.ids(provider)
        engine = self.fixture.engine

        def impatient(connection: Any, _record: Any) -> None:
            connection.execute("SET lock_timeout = '1s'")
            connection.commit()

        sa.event.listen(engine, "connect", impatient)
        self.addCleanup(sa.event.remove, engine, "connect", impatient)
        engine.dispose()
        body = {str(uuid.uuid4()): _request({provider: {"VCPU": 1}})}
        with (
            engine.connect() as other,
            mock.patch.object(guarded_write, "MOST_SECONDS", 0.5),
        ):
            self.lock(other, number)
            answer = self.started(lambda: self.placement.post(body)).result(WAIT_SECONDS)
            other.rollback()
        self.assertEqual((409, "placement.concurrent_update"), (answer.status, answer.code))

    def test_a_deadlock_is_tried_again(self) -> None:
        self.skipTest("PostgreSQL ends whoever finds the deadlock, which is the other one here")
