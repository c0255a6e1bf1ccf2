# SPDX-License-Identifier: Apache-2.0
"""select_destinations by Nova's own path, for each reason: nobody is answered on a full host.

Beside each allocation somebody else is granted all that there is on the host, as
Placement does where writes race.
"""

from __future__ import annotations

import time
import uuid
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as keystone
from nova import exception, objects
from nova.scheduler.client import report

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.claims import unjudged_claims
from nova_nodb_scheduler.nova_adapter.decisions import request_decider
from nova_nodb_scheduler.nova_adapter.placement.allocations import verification
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.testing import patience, single_claims
from tests.functional.nova_adapter import cloud, placement_mariadb
from tests.functional.nova_adapter.decisions import test_memory_decisions


class OwnPathCase(test_memory_decisions.MemoryDecisionsCase):
    def setUp(self) -> None:
        super().setUp()
        #: Hosts on which a rival was granted everything, in order.
        self.raced: list[str] = []
        pauses = mock.patch.object(verification.AllocationVerifier, "_pause", lambda *_: None)
        pauses.start()
        self.addCleanup(pauses.stop)

    def figures(self) -> dict[str, int]:
        figures = self.runtime.claim_metrics.figures()
        return {n: c for n, c in figures.items() if n.startswith("allocations: ")}

    def held(self, host: str) -> dict[str, model.HeldClaim]:
        ledger = single_claims.stranger(self.runtime.synchronizer)
        return dict(ledger.read(self.nodes[host].uuid).claims)

    def names(self) -> dict[str, str]:
        return {node.uuid: host for host, node in self.nodes.items()}

    def race(self, times: int = 1) -> None:
        """Have the first allocations, each on another host, meet a rival there."""
        for name in ("put", "post"):
            self._race(name, times)

    def _race(self, name: str, times: int) -> None:
        own = getattr(self.client, name)

        def raced(url: str, data: Any, *args: Any, **kwargs: Any) -> Any:
            done = own(url, data, *args, **kwargs)
            host = self._host_of(url, data)
            if done.status_code == 204 and host and host not in self.raced[:times]:
                if len(self.raced) < times:
                    self.raced.append(host)
                    self.fill(host)
            return done

        patcher = mock.patch.object(self.client, name, raced)
        patcher.start()
        self.addCleanup(patcher.stop)

    def _host_of(self, url: str, data: Any) -> str | None:
        if not url.startswith("/allocations"):
            return None
        bodies = [data] if "allocations" in data else list(data.values())
        providers = [name for body in bodies for name in body["allocations"]]
        return self.names().get(providers[0]) if providers else None

    def fill(self, host: str) -> None:
        """Grant all VCPUs of a host to somebody, whatever is used there."""
        node = self.nodes[host]
        body = {
            "allocations": {node.uuid: {"resources": {"VCPU": node.vcpus}}},
            "project_id": "rival",
            "user_id": "rival",
            "consumer_generation": None,
        }
        with placement_mariadb.granting_anything():
            self.ask("put", f"/allocations/{uuid.uuid4()}", body)

    def turns_of(self, name: str) -> list[tuple[set[str], set[str]]]:
        """Watch calls of Placement: at which hosts their writes are alone, and beside others."""
        own = getattr(report.SchedulerReportClient, name)
        turns, found = self.runtime.decisions.write_turns, []

        def sent(client: Any, url: str, *args: Any, **kwargs: Any) -> Any:
            if url.startswith("/allocations"):
                [turn] = turns.line
                hosts = self.names()
                alone = {hosts[each] for each in turn.alone_at}
                found.append((alone, {hosts[e] for e in turn.touches if e in hosts} - alone))
            return own(client, url, *args, **kwargs)

        def of_class(*args: Any, **kwargs: Any) -> Any:
            # What counts calls has kept the method as it was before anybody took turns.
            return getattr(report.SchedulerReportClient, name)(self.client, *args, **kwargs)

        for owner, watch in ((report.SchedulerReportClient, sent), (self.client, of_class)):
            patcher = mock.patch.object(owner, name, watch)
            patcher.start()
            self.addCleanup(patcher.stop)
        return found

    def group(self, policy: str) -> Any:
        group = objects.InstanceGroup(
            uuid=str(uuid.uuid4()), policy=policy, policies=[policy], members=[], hosts=[]
        )
        group._rules = {}
        return group

    def assert_next_host(self, reason: str) -> str:
        """Meet a rival on the first host: the server goes to the other, and only there."""
        self.race()
        [server], chosen = self.select()
        [first], other = self.raced, chosen[0][0].service_host
        self.assertNotEqual(first, other)
        allocated = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual([self.nodes[other].uuid], list(allocated))
        self.assertEqual(self.nodes[first].vcpus, self.used(first)["VCPU"])
        self.assertEqual({reason: 1}, self.runtime.candidates())
        self.assertEqual({"allocations: withdrawn": 1, "allocations: stands": 1}, self.figures())
        self.assertNotIn(server, self.held(first))
        return str(server)


class OwnPathTest(OwnPathCase):
    def test_the_mirror_is_missing(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        server = self.assert_next_host("mirror too old")
        # What others claim from now on is judged beside it.
        [host] = {"h1", "h2"} - set(self.raced)
        self.assertIs(model.ClaimState.CONFIRMED, self.held(host)[server].state)
        self.assertEqual(self.runtime.replicator.status().identity, self.held(host)[server].writer)

    def test_its_write_is_alone_at_its_host_among_all_of_the_worker(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        turns = self.turns_of("put")
        [chosen] = self.select()[1]
        self.assertEqual([({chosen[0].service_host}, set())], turns)

    def test_a_request_says_why_it_left_memory_before_it_writes_anything(self):
        # What counts such requests is gone with a worker that is killed meanwhile.
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        logger = "nova_nodb_scheduler.nova_adapter.decision_log"
        with (
            self.assertLogs(logger, "INFO") as logged,
            mock.patch.object(self.client, "put", autospec=True, side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.select()
        [line] = logged.output
        self.assertIn("are decided among Placement's candidates: mirror too old.", line)

    def test_the_states_are_not_proved(self):
        self.runtime.judge._feed_alive = lambda bound: False
        self.assert_next_host("states not proved")

    def test_each_reason_for_which_no_claim_is_judged(self):
        for reason in sorted(manager._IN_DOUBT):
            with self.subTest(reason):
                with mock.patch.object(
                    self.runtime.decisions.placement_mirror, "refusal", lambda r=reason: r
                ):
                    self.select()
        self.assertEqual({"allocations: stands": len(manager._IN_DOUBT)}, self.figures())

    def test_the_back_end_is_down(self):
        with mock.patch.object(
            self.runtime.decisions.placement_mirror, "refusal", lambda: "claims unavailable"
        ):
            self.hub.faults.go_down()
            try:
                self.race()
                _, chosen = self.select_without_beat()
            finally:
                self.hub.faults.come_up()
        [first] = self.raced
        self.assertNotEqual(first, chosen[0][0].service_host)
        self.assertEqual(self.nodes[first].vcpus, self.used(first)["VCPU"])

    def test_a_member_that_nobody_can_be_told_of_is_said(self):
        with (
            mock.patch.object(
                self.runtime.decisions.placement_mirror, "refusal", lambda: "claims unavailable"
            ),
            self.assertLogs(unjudged_claims.LOG, "WARNING") as logged,
        ):
            self.hub.faults.go_down()
            try:
                [server], _chosen = self.select_without_beat(instance_group=self.group("affinity"))
            finally:
                self.hub.faults.come_up()
        self.assertIn(f"Server {server} of group", logged.output[-1])

    def select_without_beat(self, **fields: Any) -> Any:
        with mock.patch.object(self, "beat", lambda: None):
            return self.select(**fields)

    def test_a_choice_by_novas_own_code_under_a_judged_claim_is_looked_at_as_well(self):
        for node in self.nodes.values():
            self.inventories(node.uuid, VCPU=4, MEMORY_MB=16384, DISK_GB=100, VGPU=4)
        turns = self.turns_of("put")
        [chosen] = self.select(extra_specs={"resources1:VGPU": "1"})[1]
        self.assertEqual({"more than one group": 1}, self.runtime.candidates())
        self.assertEqual({"allocations: stands": 1}, self.figures())
        self.assertEqual([({chosen[0].service_host}, set())], turns)

    def test_where_all_hosts_are_raced_for_there_is_no_valid_host_and_nothing_is_left(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        self.race(times=2)
        with self.assertRaises(exception.NoValidHost):
            self.select()
        for host, node in self.nodes.items():
            self.assertEqual(node.vcpus, self.used(host)["VCPU"])
            self.assertEqual({}, self.held(host))

    def hosts_of_two(self, policy: str, **first: Any) -> list[str]:
        """Place two members, the second by Nova's own path before others show the first."""
        group = self.group(policy)
        _, before = self.select(instance_group=group, **first)
        group.hosts = []
        with mock.patch.object(
            self.runtime.decisions.placement_mirror, "refusal", lambda: "mirror behind"
        ):
            _, after = self.select(instance_group=group)
        return [chosen[0][0].service_host for chosen in (before, after)]

    def test_affinity_holds_with_a_member_of_which_only_claims_tell(self):
        # The other host would be Nova's choice.
        self.assertEqual(["h2", "h2"], self.hosts_of_two("affinity", ignore_hosts=["h1"]))

    def test_anti_affinity_holds_with_a_member_of_which_only_claims_tell(self):
        self.assertEqual({"h1", "h2"}, set(self.hosts_of_two("anti-affinity", ignore_hosts=["h2"])))

    def test_anti_affinity_holds_with_a_member_that_was_noted_as_the_back_end_was_away(self):
        group = self.group("anti-affinity")
        own, others = self.client.put, []

        def put(url: str, *args: Any, **kwargs: Any) -> Any:
            done = own(url, *args, **kwargs)
            if url.startswith("/allocations") and not others:
                # The back end is there again, and another member is placed as if beside it.
                self.hub.faults.come_up()
                others.append(None)
                group.hosts = []
                _, others[0] = self.select(instance_group=group, ignore_hosts=["h2"])
            return done

        self.addCleanup(self.hub.faults.come_up)
        with (
            mock.patch.object(unjudged_claims, "_REST_SECONDS", 0.0),
            mock.patch.object(self.client, "put", put),
            mock.patch.object(
                self.runtime.decisions.placement_mirror, "refusal", lambda: "claims unavailable"
            ),
        ):
            self.hub.faults.go_down()
            [server], chosen = self.select_without_beat(instance_group=group)
        self.assertEqual("h1", others[0][0][0].service_host)
        self.assertEqual("h2", chosen[0][0].service_host)
        allocated = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual([self.nodes["h2"].uuid], list(allocated))

    def test_a_group_learns_of_a_member_that_was_placed_without_a_judged_claim(self):
        group = self.group("anti-affinity")
        with mock.patch.object(
            self.runtime.decisions.placement_mirror, "refusal", lambda: "mirror behind"
        ):
            _, before = self.select(instance_group=group)
        group.hosts = []
        # Its filter does not know of the first one, the group's claims do.
        _, after = self.select(instance_group=group)
        self.assertNotEqual(before[0][0].service_host, after[0][0].service_host)


class PlacementAwayTest(OwnPathCase):
    """Placement's answers are lost until a request leaves memory."""

    def use(self, fixture: Any) -> None:
        self.override("claim_deadline_seconds", 1, "nodb_scheduler")
        super().use(fixture)

    def go_away(self, *, gone_seconds: float) -> None:
        """Carry the next POST out and lose its answer, and all of this server's for a while."""
        own_post, own_get = self.client.post, self.client.get
        until: list[float] = []

        def post(url: str, *args: Any, **kwargs: Any) -> Any:
            if until and time.monotonic() < until[0]:
                raise keystone.ConnectFailure
            done = own_post(url, *args, **kwargs)
            if not until:
                until.append(time.monotonic() + gone_seconds)
                raise keystone.ConnectFailure
            return done

        def get(url: str, *args: Any, **kwargs: Any) -> Any:
            if until and time.monotonic() < until[0] and url.startswith("/allocations/"):
                raise keystone.ConnectFailure
            return own_get(url, *args, **kwargs)

        for name, method in (("post", post), ("get", get)):
            patcher = mock.patch.object(self.client, name, method)
            patcher.start()
            self.addCleanup(patcher.stop)

    def test_what_memory_could_not_take_back_is_gone_before_novas_path_allocates(self):
        self.go_away(gone_seconds=2.0)
        own = self.manager.host_manager.get_filtered_hosts
        avoided: list[str | None] = []

        def elsewhere(hosts: Any, spec: Any, index: int = 0) -> Any:
            # Nova's own code comes to another host than memory.
            found = own(hosts, spec, index)
            [standing] = [name for name in self.nodes if self.used(name)["VCPU"]] or [None]
            avoided.append(standing)
            return [each for each in found if each.host != "h1"]

        with mock.patch.object(self.manager.host_manager, "get_filtered_hosts", elsewhere):
            with mock.patch.object(
                self.runtime.decisions.parts.ways.reservations, "reserve", self.only("h1")
            ):
                [server], chosen = self.select()
        self.assertEqual("h2", chosen[0][0].service_host)
        self.assertEqual([None], avoided)
        allocated = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual([self.nodes["h2"].uuid], list(allocated))

    def test_what_nobody_can_take_back_ends_the_request(self):
        self.go_away(gone_seconds=3.0)
        with mock.patch.object(request_decider, "_ENDING_SECONDS", 0.2):
            self.assertRaises(exception.AllocationUpdateFailed, self.select)
        self.assertEqual(1, sum(self.used(host)["VCPU"] for host in self.nodes))

    def only(self, name: str) -> Any:
        own = self.runtime.decisions.parts.ways.reservations.reserve
        return lambda consumer, request, best: best.host == name and own(consumer, request, best)


class NeverVerifiedTest(OwnPathCase):
    def use(self, fixture: Any) -> None:
        self.override("verify_allocations", "never", "nodb_scheduler")
        super().use(fixture)

    def test_placements_word_is_trusted_as_in_stock(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        self.race()
        _, chosen = self.select()
        self.assertEqual(self.raced, [chosen[0][0].service_host])
        self.assertEqual({}, self.figures())


class PlacementCandidatesCase(OwnPathCase):
    CLAIMS = "on"

    def use(self, fixture: Any) -> None:
        self.override("candidates", "placement", "nodb_scheduler")
        self.override("claims", self.CLAIMS, "nodb_scheduler")
        super().use(fixture)

    def settle(self) -> None:
        self.beat()


class CandidatesOfPlacementTest(PlacementCandidatesCase):
    """No scheduler decides from memory, so none judges a claim; servers are noted all the same."""

    def test_a_server_goes_to_the_next_host_and_is_noted_there_alone(self):
        self.race()
        [server], chosen = self.select()
        [first], other = self.raced, chosen[0][0].service_host
        self.assertNotEqual(first, other)
        self.assertEqual(self.nodes[first].vcpus, self.used(first)["VCPU"])
        self.assertEqual({}, self.held(first))
        self.assertIs(model.ClaimState.CONFIRMED, self.held(other)[server].state)
        self.assertEqual(self.runtime.replicator.status().identity, self.held(other)[server].writer)

    def test_its_note_stands_before_the_write(self):
        noted: list[model.ClaimState] = []
        own = self.client.put

        def put(url: str, data: Any, *args: Any, **kwargs: Any) -> Any:
            host = self._host_of(url, data)
            if host is not None:
                noted.append(self.held(host)[url.rpartition("/")[2]].state)
            return own(url, data, *args, **kwargs)

        with mock.patch.object(self.client, "put", put):
            self.select(servers=2)
        self.assertEqual([model.ClaimState.PENDING] * 2, noted)

    def test_a_back_end_that_goes_away_behind_the_write_refuses_nobody(self):
        """Its note is for orphans alone, as nobody judges any: the allocation is good."""
        own = self.client.put

        def put(url: str, *args: Any, **kwargs: Any) -> Any:
            done = own(url, *args, **kwargs)
            if url.startswith("/allocations"):
                self.hub.faults.go_down()
            return done

        self.addCleanup(self.hub.faults.come_up)
        began = time.monotonic()
        with mock.patch.object(self.client, "put", put):
            [server], chosen = self.select(ignore_hosts=["h2"])
        self.assertEqual("h1", chosen[0][0].service_host)
        self.assertTrue(self.ask("get", f"/allocations/{server}")["allocations"])
        # Nobody is kept waiting for what nobody builds on.
        self.assertLess(time.monotonic() - began, 4.0)

    def test_a_groups_policy_is_novas_filters_alone(self):
        """As with stock Nova, whose compute services look once more: no group has a record."""
        group = self.group("anti-affinity")
        for _ in range(2):
            group.hosts = []
            self.select(instance_group=group, ignore_hosts=["h2"])
        self.assertEqual(2, len(self.held("h1")))
        self.assertEqual({}, self.states(known_namespaces.GROUP_CLAIMS))

    def test_beside_a_scheduler_that_claims_a_group_is_kept_apart(self):
        self.beside_one_that_claims()
        group = self.group("anti-affinity")
        _, before = self.select(instance_group=group)
        group.hosts = []
        # Its filter does not know of the first one, the group's claims do.
        _, after = self.select(instance_group=group)
        self.assertEqual({"h1", "h2"}, {each[0][0].service_host for each in (before, after)})

    def beside_one_that_claims(self) -> None:
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        key = records.RecordKey(known_namespaces.SCHEDULERS.name, "scheduler-9:1:1:0a0b0c0d")
        beat = {"host": "h", "claiming": True, "beat_at": self.synchronizer.now_seconds()}
        publisher.publish({key: lambda current: beat})
        patience.wait_until(
            lambda: key.key in self.runtime.store.snapshot().namespace(key.namespace),
            test_memory_decisions.WAIT_SECONDS,
            lambda: "",
            0.05,
        )


class PlacementWithoutClaimsTest(PlacementCandidatesCase):
    CLAIMS = "off"

    def test_a_server_goes_to_the_next_host_and_nothing_is_noted(self):
        self.race()
        _, chosen = self.select()
        self.assertNotEqual(self.raced, [chosen[0][0].service_host])
        self.assertEqual([{}, {}], [self.held(host) for host in self.nodes])


class DecidedFromMemoryTest(OwnPathCase):
    """What looking costs where hosts are claimed: nothing, but where room is short."""

    HOSTS = (
        (cloud.CELL1, "h1", 400, {}),
        (cloud.CELL2, "h2", 400, {}),
    )

    def provider(self, key: str, **totals: int) -> None:
        super().provider(key, **{**totals, "MEMORY_MB": 1638400, "DISK_GB": 10000})

    def counted(self) -> dict[str, int]:
        """Return the calls about providers, of whoever verifies; the mirror's own are others."""
        return {name: count for name, count in self.figures().items() if count}

    def test_on_a_host_with_room_nothing_is_looked_at(self):
        turns = self.turns_of("post")
        chosen = [self.select()[1][0][0].service_host for _ in range(5)]
        self.assertEqual({"memory": 5}, self.runtime.candidates())
        self.assertEqual({}, self.counted())
        # The next ones repeat the first one's request.
        self.assertEqual([(set(), {chosen[0]})], turns[:1])

    def test_on_a_tight_host_what_others_raced_for_goes_back(self):
        self.race()
        [server], chosen = self.select(vcpus=100)
        [first] = self.raced
        self.assertNotEqual(first, chosen[0][0].service_host)
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        self.assertEqual({"allocations: withdrawn": 1, "allocations: stands": 1}, self.counted())
        self.assertEqual(400, self.used(first)["VCPU"])
        self.assertNotIn(server, self.held(first))


class RaisingPartsTest(OwnPathCase):
    """Nothing may stand between a reply to a POST and its record."""

    def test_a_meter_that_raises_loses_no_server_and_no_claim(self):
        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        for name in ("claimed", "claims_confirmed", "claim_refused", "allocation_verified"):
            patcher = mock.patch.object(self.runtime.claim_metrics, name, fail)
            patcher.start()
            self.addCleanup(patcher.stop)
        [server], chosen = self.select(vcpus=2)
        host = chosen[0][0].service_host
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        self.assertIs(model.ClaimState.CONFIRMED, self.held(host)[server].state)
        self.assertEqual(2, self.used(host)["VCPU"])

    def test_hints_that_raise_lose_no_server(self):
        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        parts = self.runtime.decisions.parts
        self.race()
        with mock.patch.object(parts.placement.look_at.__self__, "hint", fail):
            object.__setattr__(parts.placement, "look_at", fail)
            [server], chosen = self.select()
        allocated = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertEqual([self.nodes[chosen[0][0].service_host].uuid], list(allocated))
        self.assertEqual({"memory": 1}, self.runtime.candidates())

    def test_a_trace_that_raises_after_the_write_leaves_nothing_twice(self):
        with mock.patch(
            "nova_nodb_scheduler.nova_adapter.decision_log.DecisionTrace.refuse",
            autospec=True,
            side_effect=ZeroDivisionError,
        ):
            self.race()
            servers, chosen = self.select(servers=2)
        for server, [selection, *_] in zip(servers, chosen, strict=True):
            allocated = self.ask("get", f"/allocations/{server}")["allocations"]
            self.assertEqual([self.nodes[selection.service_host].uuid], list(allocated))

    def test_a_killed_thread_leaves_no_allocation(self):
        class Killed(BaseException):
            pass

        def kill(*_: Any) -> Any:
            raise Killed

        parts = self.runtime.decisions.parts
        with mock.patch.object(parts.placement.verifier.__class__, "stands", kill):
            self.assertRaises(Killed, self.select)
        self.assertEqual(0, sum(self.used(host)["VCPU"] for host in self.nodes))
        self.assertEqual([{}, {}], [self.held(host) for host in self.nodes])
