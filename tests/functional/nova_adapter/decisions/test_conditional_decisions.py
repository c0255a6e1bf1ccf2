# SPDX-License-Identifier: Apache-2.0
"""Decisions behind a guarded Placement, which compares the chosen host as it writes.

With a real Placement, Nova's own client and its connections; each answer may be of
another process than the last one, guarded or not, or be lost.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs
import fixtures
import urllib3
from nova import exception
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement.allocations import conditional_writes
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions
from tests.functional.nova_adapter.placement import switched_placement

DISABLED = "COMPUTE_STATUS_DISABLED"
#: Turns of the random history.
_TURNS = 40


class ConditionalCase(test_memory_decisions.MemoryDecisionsCase):
    """Two hosts, each comparison due with each request unless a test says otherwise."""

    HOSTS = ((cloud.CELL1, "h1", 64, {}), (cloud.CELL2, "h2", 32, {}))
    #: Who answers until a test says otherwise.
    MODE = switched_placement.GUARDED

    def placement_client(self) -> report.SchedulerReportClient:
        self.placement = switched_placement.SwitchedPlacement()
        self.use(self.placement)
        self.placement.mode = self.MODE
        self.operator = self.placement.client()
        return self.placement.client()

    def setUp(self) -> None:
        # Requests are not repeated while they are logged.
        logging.disable(logging.DEBUG)
        self.addCleanup(logging.disable, logging.NOTSET)
        super().setUp()
        self.chosen = self.runtime.decisions._mirror.chosen
        self.keep_sweeps_away()
        # Has the writer learn how requests are sent, and who answers.
        self.select()
        self.bound(0.0)

    def count(self, name: str) -> None:
        """The client is Nova's own; what arrives is counted."""

    def keep_sweeps_away(self) -> None:
        """Let the keeper look at nothing for so long: what is found is found by decisions."""
        self.runtime.decisions._mirror.keeper.stop()

    def bound(self, seconds: float) -> None:
        """Have comparisons count for so long."""
        self.chosen._bound_seconds = seconds

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Be somebody else, whose requests the scheduler's process does not see."""
        arguments = {} if method in ("get", "delete") else {"data": body}
        own = getattr(report.SchedulerReportClient, method)
        own = getattr(own, "__wrapped__", own)
        done = own(self.operator, path, **arguments, version="1.36")
        self.assertLess(done.status_code, 300, done.text)
        return done.json() if done.content else None

    @contextlib.contextmanager
    def seen(self) -> Iterator[list[str]]:
        """Collect what the scheduler sends meanwhile, with a star where it names trees."""
        self.published()
        self.placement.asked.clear()
        found: list[str] = []
        yield found
        found += [
            f"{each.method} {each.path.split('?')[0].split('/')[1]}{'*' * bool(each.condition)}"
            for each in self.placement.asked
        ]

    def published(self) -> None:
        """Bring own writes into the records and the store, as a moment later they are."""
        decisions = self.runtime.decisions
        decisions._mirror.own_writes.flush()
        version = self.runtime.decisions._around.synchronizer.head().version
        decisions._wait_for(version)

    def set_traits(self, host: str, *names: str) -> None:
        key = self.nodes[host].uuid
        generation = self.ask("get", f"/resource_providers/{key}")["generation"]
        body = {"resource_provider_generation": generation, "traits": ["OWNER_NOVA", *names]}
        self.ask("put", f"/resource_providers/{key}/traits", body)

    def host_of(self, **fields: Any) -> str:
        return str(self.select(**fields)[1][0][0].service_host)

    def other(self, host: str) -> str:
        return next(name for name in self.nodes if name != host)

    def servers_on(self, host: str) -> set[str]:
        path = f"/resource_providers/{self.nodes[host].uuid}/allocations"
        return set(self.ask("get", path)["allocations"])


class ConditionalDecisionsTest(ConditionalCase):
    def test_a_request_is_one_post_and_nothing_else(self) -> None:
        for _ in range(3):
            with self.seen() as sent:
                self.host_of()
            self.assertEqual(["POST allocations*"], sent)
        self.assertEqual(3, self.chosen.shown)

    def test_so_is_one_for_servers_on_several_hosts(self) -> None:
        # The memory of one host is for 32.
        with self.seen() as sent:
            _uuids, chosen = self.select(servers=40)
        self.assertEqual(["POST allocations*"], sent)
        self.assertEqual(set(self.nodes), {each[0].service_host for each in chosen})

    def test_within_the_bound_nothing_is_compared(self) -> None:
        self.bound(60.0)
        with self.seen() as sent:
            first = self.host_of()
            self.host_of(ignore_hosts=[self.other(first)])
        self.assertLessEqual(sent.count("POST allocations*"), 1)
        self.assertEqual(2, len(sent))

    def test_without_the_guard_it_is_asked_for_as_ever(self) -> None:
        for mode in (switched_placement.PLAIN, switched_placement.OLDER):
            self.placement.mode = mode
            # Learns it; whatever that takes is another test's.
            self.host_of()
            for _ in range(2):
                with self.seen() as sent:
                    self.host_of()
                self.assertEqual(["GET resource_providers", "POST allocations"], sent)

    def test_a_host_that_an_operator_took_out_a_moment_ago_is_not_chosen(self) -> None:
        first = self.host_of()
        self.set_traits(first, DISABLED)
        other = self.other(first)
        with self.seen() as sent, self.assertRaises(exception.NoValidHost):
            self.select(ignore_hosts=[other])
        self.assertEqual("POST allocations*", sent[0])
        self.assertEqual("409", self.placement.asked[0].status[:3])
        self.published()
        self.assertEqual(other, self.host_of())
        self.assertEqual({"memory"}, set(self.runtime.candidates()))

    def test_no_valid_host_is_said_where_the_last_one_was_taken_out(self) -> None:
        before = {host: self.servers_on(host) for host in self.nodes}
        for host in self.nodes:
            self.set_traits(host, DISABLED)
        with self.assertRaises(exception.NoValidHost):
            self.select()
        self.assertEqual(before, {host: self.servers_on(host) for host in self.nodes})

    def test_allocations_of_others_are_no_reason_to_plan_again(self) -> None:
        first = self.host_of()
        self.stranger(first)
        engine = self.runtime.decisions.engine
        with (
            self.seen() as sent,
            mock.patch.object(engine, "plan", wraps=engine.plan) as planned,
        ):
            self.assertEqual(first, self.host_of(ignore_hosts=[self.other(first)]))
        self.assertEqual(1, planned.call_count)
        self.assertEqual(["POST allocations*"], sent)

    def stranger(self, host: str) -> None:
        stranger = {
            "allocations": {self.nodes[host].uuid: {"resources": {"VCPU": 1}}},
            "project_id": test_memory_decisions.PROJECT,
            "user_id": test_memory_decisions.PROJECT,
            "consumer_generation": None,
        }
        self.ask("put", f"/allocations/{uuid.uuid4()}", stranger)

    def test_own_writes_that_no_record_shows_yet_refuse_no_one(self) -> None:
        """Within the bound, which is what it is in operation; the condition is of before both."""
        self.bound(60.0)
        first = self.host_of()
        host = self.nodes[first].uuid
        snapshot = self.runtime.store.snapshot()
        self.chosen._noted.clear()
        self.bound(0.01)
        threading.Event().wait(0.02)
        condition = self.chosen.condition([host], snapshot)
        assert condition is not None
        self.bound(60.0)
        marks = condition.marks()
        self.assertEqual({host}, set(marks))
        condition.held(marks)
        self.assertEqual({}, condition.marks())
        # So it does where only allocations moved it since; of another tree it says nothing.
        moved = attrs.evolve(marks[host], generations="7")
        self.chosen.show({host: moved}, self.chosen._clock())
        self.assertEqual({}, condition.marks())
        other = attrs.evolve(moved, contents="0" * 16)
        self.chosen.show({host: other}, self.chosen._clock())
        self.assertEqual(marks, condition.marks())

    # -- who answers -----------------------------------------------------------------

    def unguarded_from(self, mode: str, then: Callable[[], None] = lambda: None) -> None:
        """Have the next write answered by another process; then something may happen first."""

        def before(method: str, path: str) -> None:
            if (method, path.rstrip("/")[-12:]) == ("POST", "/allocations"):
                self.placement.mode = mode
                self.placement.before = lambda *_: None
                then()

        self.placement.before = before

    def test_one_that_is_not_judged_is_compared_behind_the_write(self) -> None:
        for mode in (switched_placement.PLAIN, switched_placement.OLDER):
            self.trusting()
            self.unguarded_from(mode)
            with self.seen() as sent:
                first = self.host_of()
            self.assertEqual("POST allocations*", sent[0])
            self.assertIn("GET resource_providers", sent[1:])
            self.assertEqual(1, sent.count("POST allocations*"))
            self.assertNotIn("POST allocations", sent)
            self.assertTrue(self.servers_on(first))
            # Nobody is asked for conditions for a while.
            self.placement.mode = switched_placement.GUARDED
            for _ in range(2):
                with self.seen() as sent:
                    self.host_of()
                self.assertEqual(["GET resource_providers", "POST allocations"], sent)

    def trusting(self) -> None:
        """Have the writer believe again what answers say, as after the while."""
        self.placement.mode = switched_placement.GUARDED
        calls = self.runtime.decisions._writer._posting
        calls._sender._trust._doubted_until = float("-inf")
        self.host_of()
        self.assertTrue(calls.takes_conditions())

    def test_one_that_is_not_judged_is_taken_back_from_a_host_that_changed(self) -> None:
        for mode in (switched_placement.PLAIN, switched_placement.OLDER):
            self.trusting()
            first = self.host_of()
            before = self.servers_on(first)
            self.unguarded_from(mode, lambda host=first: self.set_traits(host, DISABLED))
            [server], [[selection]] = self.select()
            self.assertEqual(self.other(first), selection.service_host)
            self.assertEqual(before, self.servers_on(first))
            self.assertIn(server, self.servers_on(self.other(first)))
            self.assertEqual({}, self.held())
            self.set_traits(first)

    def test_what_another_scheduler_wrote_for_the_server_is_not_taken_back(self) -> None:
        """It froze, its conductor asked another one, and the host is another one by now."""
        self.trusting()
        server = str(uuid.uuid4())
        resources = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}

        def by_another() -> None:
            body = {
                "allocations": {self.nodes["h1"].uuid: {"resources": resources}},
                "project_id": test_memory_decisions.PROJECT,
                "user_id": test_memory_decisions.PROJECT,
                "consumer_generation": None,
            }
            self.ask("put", f"/allocations/{server}", body)
            self.set_traits("h1", DISABLED)

        self.unguarded_from(switched_placement.GUARDED, by_another)
        self.manager.select_destinations(
            self.admin,
            spec_obj=self.spec([server], ignore_hosts=["h2"]),
            instance_uuids=[server],
            return_objects=True,
        )
        found = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual(
            {self.nodes["h1"].uuid: resources},
            {node: each["resources"] for node, each in found.items()},
        )

    def held(self) -> dict[str, Any]:
        """Return what this process still holds of room for requests that are over."""
        return dict(self.runtime.decisions.parts.ways.reservations._reservations._pending)

    def test_a_lost_answer_is_compared_behind_the_write(self) -> None:
        out: list[str] = []

        def take_out() -> None:
            out.extend(host for host in self.nodes if self.servers_on(host) != before[host])
            self.set_traits(out[0], DISABLED)

        for change in (lambda: None, take_out):
            self.trusting()
            before = {host: self.servers_on(host) for host in self.nodes}
            with self.lost_once(change), self.seen() as sent:
                [server], [[selection, *_]] = self.select()
            self.assertEqual("POST allocations*", sent[0])
            self.assertIn("GET resource_providers", sent)
            changed = [host for host in self.nodes if self.servers_on(host) != before[host]]
            self.assertEqual([selection.service_host], changed)
            self.assertIn(server, self.servers_on(selection.service_host))
        self.assertEqual([self.other(selection.service_host)], out)

    @contextlib.contextmanager
    def lost_once(self, change: Callable[[], None]) -> Iterator[None]:
        """Lose the answer of the next POST, and have something happen behind it."""
        own = urllib3.HTTPConnectionPool.urlopen
        me, lost = threading.get_ident(), []

        def urlopen(pool: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            answer = own(pool, method, url, *args, **kwargs)
            if method == "POST" and "allocations" in url and not lost:
                self.assertEqual(me, threading.get_ident())
                lost.append(url)
                change()
                raise urllib3.exceptions.ProtocolError("reset")
            return answer

        with fixtures.MonkeyPatch("urllib3.HTTPConnectionPool.urlopen", urlopen):
            yield
        self.assertEqual(1, len(lost))

    def full(self) -> set[str]:
        """Return the hosts on which Placement has no VCPU left for a server."""
        found = set()
        for host, node in self.nodes.items():
            path = f"/resource_providers/{node.uuid}"
            total = self.ask("get", f"{path}/inventories")["inventories"]["VCPU"]["total"]
            if self.ask("get", f"{path}/usages")["usages"]["VCPU"] >= total:
                found.add(host)
        return found

    def test_any_history_leads_to_no_host_that_was_taken_out_before(self) -> None:
        """Operators, allocations of others, processes of all kinds, lost answers."""
        self.any_history(random.randrange(2**32))

    def test_a_history_that_fills_a_host(self) -> None:
        """One of them: the only host that is not taken out has no room in the last turn."""
        self.any_history(183088740)
        self.assertEqual({"h2"}, self.full())

    def any_history(self, seed: int) -> None:
        rng = random.Random(seed)
        modes = (switched_placement.GUARDED, switched_placement.OLDER, switched_placement.PLAIN)
        out: set[str] = set()
        expected = {server for host in self.nodes for server in self.servers_on(host)}
        self.use(fixtures.MonkeyPatch(f"{conditional_writes.__name__}._DOUBT_SECONDS", 0.0))
        conditional = 0
        for turn in range(_TURNS):
            context = f"seed {seed}, turn {turn}"
            with contextlib.ExitStack() as around:
                for host in self.nodes:
                    if rng.random() < 0.2:
                        out ^= {host}
                        self.set_traits(host, *[DISABLED][: host in out])
                if rng.random() < 0.1 and host not in self.full():
                    self.stranger(host)
                    expected |= self.servers_on(host)
                if rng.random() < 0.5:
                    self.placement.mode = rng.choice(modes)
                if rng.random() < 0.3:
                    # As the request is on its way: who comes next is the new one.
                    self.unguarded_from(rng.choice(modes))
                if rng.random() < 0.2 and len(out) < len(self.nodes):
                    around.enter_context(self.lost_sometimes(rng))
                if rng.random() < 0.5:
                    self.published()
                self.placement.asked.clear()
                try:
                    [server], [[selection, *_]] = self.select()
                except exception.NoValidHost:
                    self.assertEqual(set(self.nodes), out | self.full(), context)
                else:
                    self.assertNotIn(selection.service_host, out, context)
                    expected.add(server)
                conditional += any(each.condition for each in self.placement.asked)
            self.placement.before = lambda *_: None
            standing = {server for host in self.nodes for server in self.servers_on(host)}
            self.assertEqual(expected, standing, context)
        self.assertGreater(conditional, 0, f"seed {seed}")

    @contextlib.contextmanager
    def lost_sometimes(self, rng: random.Random) -> Iterator[None]:
        own = urllib3.HTTPConnectionPool.urlopen
        me = threading.get_ident()

        def urlopen(pool: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            is_write = method == "POST" and "allocations" in url and me == threading.get_ident()
            fate = rng.random() if is_write else 1.0
            if fate < 0.2:
                raise urllib3.exceptions.ProtocolError("refused")
            answer = own(pool, method, url, *args, **kwargs)
            if fate < 0.4:
                raise urllib3.exceptions.ProtocolError("reset")
            return answer

        with fixtures.MonkeyPatch("urllib3.HTTPConnectionPool.urlopen", urlopen):
            yield


class UnguardedDecisionsTest(ConditionalCase):
    """No process of Placement has ever said that it compares."""

    MODE = switched_placement.PLAIN

    def test_nobody_is_asked_for_a_condition_ever(self) -> None:
        self.assertTrue(self.placement.asked)
        self.assertEqual([], [each for each in self.placement.asked if each.condition])
        for _ in range(3):
            with self.seen() as sent:
                self.host_of()
            self.assertEqual(["GET resource_providers", "POST allocations"], sent)
        self.assertEqual(0, self.chosen.shown)


class OlderGuardDecisionsTest(UnguardedDecisionsTest):
    MODE = switched_placement.OLDER
