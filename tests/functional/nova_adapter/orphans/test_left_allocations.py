# SPDX-License-Identifier: Apache-2.0
"""Allocations that a living scheduler could not take back, where the back end lost its note.

A worker over Nova's databases and a real Placement; what fails is Placement, for some time,
and the back end, which loses what it held or does not answer.
"""

from __future__ import annotations

import contextlib
import operator
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as keystone
from nova import exception, objects

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.nova_adapter.claims import unjudged_claims
from nova_nodb_scheduler.nova_adapter.orphans import left_allocations
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.orphans import test_noted_orphans, test_orphans

RESOURCES = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


#: What takes a request to Placement.
CALLS = ("get", "put", "post", "delete")


@contextlib.contextmanager
def silent_behind_the_write(
    client: Any, write: Callable[[Callable[[], Any]], Any], silence: Callable[[], Any]
) -> Iterator[None]:
    """Have Placement fall silent with the first write of allocations; at the end it is back.

    :param write: what becomes of that write, which it is given
    :param silence: answers everything behind it
    """
    silent: list[bool] = []

    def patched(name: str) -> Any:
        own = getattr(client, name)

        def sent(url: str, *args: Any, **kwargs: Any) -> Any:
            if silent:
                return silence()
            if name == "get" or not url.startswith("/allocations"):
                return own(url, *args, **kwargs)
            silent.append(True)
            return write(lambda: own(url, *args, **kwargs))

        return mock.patch.object(client, name, sent)

    with contextlib.ExitStack() as patches:
        for each in CALLS:
            patches.enter_context(patched(each))
        yield


class LeftCase(test_noted_orphans.NotedCase):
    def setUp(self) -> None:
        super().setUp()
        upkeep = self.runtime.upkeep
        self.left = upkeep.left
        upkeep.left_duty.stop()
        upkeep.left_duty._turn_seconds = 0.05
        upkeep.left_duty._backoff._max_seconds = 0.1
        self.left._over_seconds = 0.5
        upkeep.left_duty.start()

    def given_up(self, write: Callable[[Callable[[], Any]], Any] = operator.call) -> str:
        """Have a request end whose allocation could not be taken back; return its server."""
        server = str(uuid.uuid4())
        with silent_behind_the_write(self.client, write, test_orphans.unavailable):
            self.assertRaises(
                (exception.NovaException, keystone.ClientException),
                self.manager.select_destinations,
                self.admin,
                spec_obj=self.spec([server]),
                instance_uuids=[server],
                return_objects=True,
            )
        return server

    def lose(self) -> None:
        """Have the back end forget all, as Redis or memcached that is restarted."""
        self.hub.begin_epoch()
        self.reporter.flush()
        self.sweep()
        self.settle()

    def node_of(self, server: str) -> str:
        [node] = self.ask("get", f"/allocations/{server}")["allocations"]
        return str(node)


class LostNoteTest(LeftCase):
    def test_its_note_is_lost_with_the_back_end_and_it_is_deleted_all_the_same(self):
        server = self.given_up()
        self.assertIs(model.ClaimState.PENDING, self.noted(server).state)
        self.bury(server)
        self.lose()
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: self.figures()["orphans_deleted"] == 1.0)

    def test_where_a_scheduler_was_cut_off_and_could_note_nothing_it_notes_it_later(self):
        self.hub.faults.go_down()
        self.addCleanup(self.hub.faults.come_up)
        server = self.given_up()
        self.hub.faults.come_up()
        self.settle()
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))

    def test_a_server_that_is_deleted_at_once_leaves_nothing_though_who_wrote_it_lives(self):
        """Seed 706 with sqlite: in cell0 it was for a second."""
        server = self.given_up()
        self.end_leases()
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: self.figures()["orphans_deleted"] == 1.0)

    def test_nor_where_its_note_is_lost_with_the_back_end(self):
        server = self.given_up()
        self.lose()
        self.wait(lambda: not self.is_allocated(server))

    def test_until_its_request_is_over_it_is_left(self):
        self.left._over_seconds = 3600.0
        server = self.given_up()
        self.end_leases()
        self.wait(lambda: self.lapsed(server))
        self.wait(lambda: self.figures()["orphans_absent"] == 1.0)
        looked = self.runtime.upkeep.orphan_duty.finder.status.looked
        self.wait(lambda: self.runtime.upkeep.orphan_duty.finder.status.looked > looked + 3)
        self.assertTrue(self.is_allocated(server))

    def test_it_is_noted_each_time_that_the_back_end_loses_it(self):
        server = self.given_up()
        for _ in range(3):
            self.lose()
            self.wait(lambda: self.lapsed(server))
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))

    def test_a_write_that_comes_when_its_note_is_lost_is_deleted(self):
        late: list[Callable[[], Any]] = []

        def keep(call: Callable[[], Any]) -> Any:
            late.append(call)
            raise keystone.ConnectTimeout

        server = self.given_up(keep)
        self.lose()
        self.bury(server)
        self.assertFalse(self.is_allocated(server))
        late[0]()
        self.assertTrue(self.is_allocated(server))
        self.wait(lambda: not self.is_allocated(server))

    def test_a_thread_that_is_killed_as_it_confirms_keeps_its_note_where_it_cannot_withdraw(self):
        server = str(uuid.uuid4())

        with contextlib.ExitStack() as patches:

            def killed(*_: Any) -> Any:
                patches.enter_context(
                    mock.patch.object(self.client, "get", test_orphans.unavailable)
                )
                raise test_noted_orphans.Killed

            patches.enter_context(
                mock.patch.object(unjudged_claims.ClaimNotes, "confirmed_once", killed)
            )
            self.assertRaises(
                test_noted_orphans.Killed,
                self.manager.select_destinations,
                self.admin,
                spec_obj=self.spec([server]),
                instance_uuids=[server],
                return_objects=True,
            )
        self.assertTrue(self.remembered(server))
        self.assertEqual(1, len(self.left))

    def test_what_is_over_is_remembered_no_longer(self):
        server = self.given_up()
        self.left._forget_seconds = 1.0
        self.lose()
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: not len(self.left) and not self.remembered(server))


class TogetherTest(LeftCase):
    """Of several servers one is in doubt: nobody is answered with the others."""

    def asked_for_three(self, write: Callable[[Callable[[], Any]], Any]) -> list[str]:
        """Have Placement fall silent with the third write; return the servers."""
        servers = [str(uuid.uuid4()) for _ in range(3)]
        writes: list[bool] = []
        with contextlib.ExitStack() as patches:

            def third(call: Callable[[], Any]) -> Any:
                writes.append(True)
                return write(call) if len(writes) == 3 else call()

            patches.enter_context(self.around_the_write(third))
            self.assertRaises(
                (exception.NovaException, keystone.ClientException),
                self.manager.select_destinations,
                self.admin,
                spec_obj=self.spec(servers),
                instance_uuids=servers,
                return_objects=True,
            )
        return servers

    def test_those_that_stood_are_taken_back_at_once(self):
        servers = self.asked_for_three(lambda call: self.fail_to_write())
        self.assertEqual([], [each for each in servers if self.is_allocated(each)])

    def fail_to_write(self) -> Any:
        raise exception.AllocationUpdateFailed(consumer_uuid="third", error="made for a test")

    def test_without_placement_and_back_end_they_are_deleted_later(self):
        self.hub.faults.go_down()
        self.addCleanup(self.hub.faults.come_up)
        servers = self.asked_where_placement_goes()
        self.hub.faults.come_up()
        self.settle()
        for server in servers:
            self.bury(server)
        self.wait(lambda: not any(map(self.is_allocated, servers)))

    def test_so_they_are_where_their_servers_are_deleted_at_once_and_their_writer_lives(self):
        """Those of which their writer was sure are noted as confirmed."""
        servers = self.asked_where_placement_goes()
        states = [note.state for each in servers if (note := self.noted(each))]
        self.assertEqual(2, states.count(model.ClaimState.CONFIRMED))
        self.wait(lambda: not any(map(self.is_allocated, servers)))

    def asked_where_placement_goes(self) -> list[str]:
        with contextlib.ExitStack() as silence:

            def away(_call: Callable[[], Any]) -> Any:
                for name in CALLS:
                    silence.enter_context(
                        mock.patch.object(
                            self.client, name, lambda *_, **__: test_orphans.unavailable()
                        )
                    )
                raise keystone.ConnectFailure

            servers = self.asked_for_three(away)
        self.assertEqual(2, sum(map(self.is_allocated, servers)))
        return servers


class LostClaimsTest(LeftCase):
    """A scheduler is dead, and the back end loses the claims that tell what it wrote."""

    def test_what_it_had_not_confirmed_is_deleted(self):
        [server] = self.frozen(self.after_the_write)
        self.assertIs(model.ClaimState.PENDING, self.noted(server).state)
        self.lose()
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: self.figures()["orphans_deleted"] == 1.0)

    def test_so_it_is_where_its_server_is_deleted_at_once(self):
        """Who remembers it lives; who wrote it does not."""
        [server] = self.frozen(self.after_the_write)
        self.lose()
        self.wait(lambda: not self.is_allocated(server))

    def test_what_its_conductor_never_heard_of_is_deleted(self):
        [server], _chosen = self.asked(self.other())
        self.assertIs(model.ClaimState.CONFIRMED, self.noted(server).state)
        self.lose()
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))

    def test_a_server_that_is_under_way_keeps_it(self):
        [server], _chosen = self.asked(self.other())
        instance = objects.Instance(self.admin, uuid=server, project_id="p", user_id="u")
        request = objects.BuildRequest(
            self.admin, instance_uuid=server, project_id="p", instance=instance
        )
        request.create()
        self.lose()
        self.wait(lambda: self.lapsed(server))
        host = next(name for name, each in self.nodes.items() if each.uuid == self.node_of(server))
        cell = next(cell for cell, name, *_ in self.HOSTS if name == host)
        self.instance(cell, host, uuid=server)
        request.destroy()
        self.beat()
        self.wait(lambda: not len(self.left) and not self.remembered(server))
        self.assertTrue(self.is_allocated(server))
        self.assertEqual(0.0, self.figures()["orphans_deleted"])


class StandingTest(LeftCase):
    """What it could not take back belongs to a server by now, which another asked for."""

    def looked(self, looks: int = 4) -> None:
        finder = self.runtime.upkeep.orphan_duty.finder
        since = finder.status.looked
        self.wait(lambda: finder.status.looked >= since + looks)

    def test_a_server_that_stands_there_keeps_it_and_the_debt_ends(self):
        server = self.given_up()
        host = next(name for name, each in self.nodes.items() if each.uuid == self.node_of(server))
        cell = next(cell for cell, name, *_ in self.HOSTS if name == host)
        self.instance(cell, host, uuid=server)
        self.lose()
        self.wait(lambda: self.lapsed(server))
        self.looked()
        self.left._forget_seconds = 0.5
        self.wait(lambda: not len(self.left) and not self.remembered(server))
        self.assertTrue(self.is_allocated(server))
        self.assertEqual(0.0, self.figures()["orphans_deleted"])

    def test_a_server_that_is_still_asked_for_keeps_it(self):
        server = self.given_up()
        instance = objects.Instance(self.admin, uuid=server, project_id="p", user_id="u")
        objects.BuildRequest(
            self.admin, instance_uuid=server, project_id="p", instance=instance
        ).create()
        self.lose()
        self.looked()
        self.assertTrue(self.is_allocated(server))
        self.assertEqual(0.0, self.figures()["orphans_deleted"])

    def test_two_that_remember_the_same_note_it_once_and_it_ends_once(self):
        server = self.given_up()
        node = self.node_of(server)
        other = self.other().nodb.upkeep.left
        other._synchronizer.open()
        other.add(server, node, RESOURCES)
        self.lose()
        self.wait(lambda: self.lapsed(server))
        before = self.hub.head()
        for _ in range(3):
            other.turn()
            self.left.turn()
        records = self.hub.read([claim_rules.host_key(node)])
        self.assertLessEqual(
            max(each.version for each in records.values()), before.version, "written again"
        )
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: self.figures()["orphans_deleted"] == 1.0)


class FromMemoryTest(test_orphans.OrphansCase):
    """The same of a request that is decided from memory: its claim is lost."""

    def test_its_claim_is_lost_with_the_back_end_and_it_is_deleted_all_the_same(self):
        server, decider = str(uuid.uuid4()), self.runtime.decisions.decider

        def silence() -> Any:
            raise keystone.ConnectFailure

        with (
            silent_behind_the_write(self.client, test_orphans.timed_out_after, silence),
            mock.patch.object(decider, "_deadline_seconds", 0.5),
        ):
            self.assertRaises(
                exception.NovaException,
                self.manager.select_destinations,
                self.admin,
                spec_obj=self.spec([server]),
                instance_uuids=[server],
                return_objects=True,
            )
        self.assertTrue(self.is_allocated(server))
        self.server(cloud.CELL0, None, server, vm_state="error")
        self.lose()
        self.assert_goes(server)

    def test_what_a_dead_scheduler_left_is_lost_with_the_back_end_and_deleted_all_the_same(self):
        server = self.died()
        self.server(cloud.CELL0, None, server, vm_state="error")
        self.lose()
        self.assert_goes(server)

    def lose(self) -> None:
        self.hub.begin_epoch()
        self.reporter.flush()
        self.sweep()
        self.settle()

    def assert_goes(self, server: str) -> None:
        left = self.runtime.decisions._upkeep.left
        self.wait(lambda: bool(len(left)))
        left.turn()

        def is_gone() -> bool:
            self.turns(1)
            return not self.is_allocated(server)

        self.wait(is_gone)

    def test_of_what_schedulers_claimed_each_is_remembered_and_nothing_of_a_conductors(self):
        left = self.runtime.decisions._upkeep.left
        dead = [self.died(confirmed=confirmed) for confirmed in (False, True)]
        conductors, standing = (str(uuid.uuid4()) for _ in range(2))
        self.server(next(cell for cell, host, *_ in self.HOSTS if host == "h1"), "h1", standing)
        self.beat()
        for consumer, writer in (
            (conductors, f"{lapsed_claims.CONDUCTOR}:ctl1:0a0b"),
            (standing, test_orphans.DEAD),
        ):
            self.claim(consumer, "h1", writer, model.ClaimState.CONFIRMED)
        node = self.nodes["h1"].uuid
        self.wait(lambda: {conductors, standing} <= self.record(node).claims.keys())
        self.hub.begin_epoch()
        self.wait(lambda: len(left) == len(dead))
        self.assertEqual(sorted(dead), sorted(consumer for consumer, _host in left._left))

    def test_a_worker_remembers_as_many_as_it_has_room_for_and_its_own_first(self):
        left = self.runtime.decisions._upkeep.left
        dead = [self.died() for _ in range(3)]
        with mock.patch.object(left_allocations, "_MOST_LEFT", 2):
            left.add("own", self.nodes["h1"].uuid, RESOURCES)
            self.hub.begin_epoch()
            self.wait(lambda: len(left) > 1)
            remembered = {consumer for consumer, _host in left._left}
        self.assertEqual(("own", 1), (*remembered - set(dead), len(remembered & set(dead))))
