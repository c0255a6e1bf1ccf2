# SPDX-License-Identifier: Apache-2.0
"""Members of strict groups that are on their way as the back end loses its data.

Nova's code above the choice, a real Placement, and of the back ends that forget with a restart
the real servers. A member is on its way: it was answered, and no record shows it on its host.
The next one knows of it by claims alone; the other host would be Nova's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from nova import exception, objects

from nova_nodb_scheduler.nova_adapter.claims import unjudged_claims
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.testing import patience, redis_server, server_processes, servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_own_path
from tests.functional.nova_adapter.orphans import test_noted_orphans

WAIT_SECONDS = 60.0
#: By policy: the host that the first member is kept from, and where the next one belongs.
POLICIES = {"affinity": ("h1", "h2"), "anti-affinity": ("h2", "h2")}


class LostMembersCase(test_own_path.OwnPathCase):
    HOSTS = ((cloud.CELL1, "h1", 40, {}), (cloud.CELL2, "h2", 20, {}))

    def setUp(self) -> None:
        super().setUp()
        self.groups = {policy: self.group(policy) for policy in POLICIES}
        rests = mock.patch.object(unjudged_claims, "_REST_SECONDS", 0.0)
        rests.start()
        self.addCleanup(rests.stop)

    def lose(self) -> None:
        """Have the back end forget all."""
        self.hub.begin_epoch()

    def published(self) -> None:
        """Have all be published again, and wait until memory decides."""
        self.beat()
        self.sweep()
        self.settle()

    def place_first(self, policy: str) -> str:
        """Place the first member of a group; return its server."""
        [server], _chosen = self.select(
            instance_group=self.asked(policy), ignore_hosts=[POLICIES[policy][0]]
        )
        return str(server)

    def place_first_ones(self) -> dict[str, str]:
        return {policy: self.place_first(policy) for policy in POLICIES}

    def asked(self, policy: str) -> Any:
        """Return a group as its next request knows it, which came before the first member."""
        own = self.groups[policy]
        group = objects.InstanceGroup(
            uuid=own.uuid, policy=policy, policies=[policy], members=[], hosts=[]
        )
        group._rules = {}
        return group

    def next_by_memory(self, policy: str) -> str:
        _, chosen = self.select(instance_group=self.asked(policy))
        self.assertGreater(self.runtime.candidates().get("memory", 0), 0)
        return str(chosen[0][0].service_host)

    def next_by_own_path(self, policy: str, **fields: Any) -> str:
        refused = mock.patch.object(
            self.runtime.decisions.placement_mirror, "refusal", lambda: "mirror behind"
        )
        with refused, mock.patch.object(self, "beat", lambda: None):
            _, chosen = self.select(instance_group=self.asked(policy), **fields)
        return str(chosen[0][0].service_host)

    def assert_kept(self, place: Callable[[str], str]) -> None:
        for policy, (_, host) in POLICIES.items():
            with self.subTest(policy):
                self.assertEqual(host, place(policy))

    def members(self, policy: str) -> dict[str, Any]:
        state = self.states(known_namespaces.GROUP_CLAIMS).get(self.groups[policy].uuid)
        return {} if state is None else dict(state["members"])

    def wait(self, condition: Callable[[], Any]) -> None:
        patience.wait_until(condition, WAIT_SECONDS, lambda: "", 0.05)


class HeldCases:
    """What holds on each back end that forgets; beside a :class:`LostMembersCase`."""

    def test_novas_own_path_keeps_policies_from_the_first_moment_on(self):
        self.place_first_ones()
        self.lose()
        self.assert_kept(self.next_by_own_path)

    def test_novas_own_path_keeps_them_once_its_worker_knows_of_the_loss(self):
        first = self.place_first_ones()
        self.lose()
        self.wait(lambda: all(first[each] in self.members(each) for each in POLICIES))
        self.assert_kept(self.next_by_own_path)

    def test_memory_keeps_them_once_it_decides_again(self):
        self.place_first_ones()
        self.lose()
        self.published()
        self.assert_kept(self.next_by_memory)

    def test_a_request_decided_anew_seconds_later_by_novas_own_code_finds_them_still(self):
        """Seed 707: refused for two that were on their way, who had reached it by then."""
        policy = "affinity"
        servers = [self.place_first(policy)]
        [second], chosen = self.select(instance_group=self.asked(policy))
        self.assertEqual("h2", chosen[0][0].service_host)
        servers.append(str(second))
        self.lose()
        self.wait(lambda: set(servers) <= self.members(policy).keys())
        for server in servers:
            self.instance(cloud.CELL2, "h2", uuid=server, vm_state="active")
        self.published()
        self.assertEqual("h2", self.next_by_own_path(policy))
        # There is no room for one more of them: it is not built elsewhere.
        self.inventories(self.nodes["h2"].uuid, VCPU=3, MEMORY_MB=16384, DISK_GB=100)
        self.assertRaises(exception.NoValidHost, self.next_by_own_path, policy)


class LostMembersTest(HeldCases, LostMembersCase):
    def test_while_the_back_end_is_away_policies_are_judged_by_what_is_known(self):
        self.place_first_ones()
        self.hub.faults.go_down()
        self.addCleanup(self.hub.faults.come_up)
        self.assert_kept(self.next_by_own_path)

    def test_members_that_were_placed_while_it_was_away_are_kept_to_and_told_later(self):
        self.hub.faults.go_down()
        self.addCleanup(self.hub.faults.come_up)
        for policy, (ignored, _) in POLICIES.items():
            self.next_by_own_path(policy, ignore_hosts=[ignored])
        self.assert_kept(self.next_by_own_path)
        self.hub.faults.come_up()
        self.wait(lambda: all(len(self.members(each)) == 2 for each in POLICIES))

    def test_of_two_threads_that_place_members_while_it_is_away_the_later_one_gives_way(self):
        own, others = self.client.put, []

        def put(url: str, *args: Any, **kwargs: Any) -> Any:
            done = own(url, *args, **kwargs)
            if url.startswith("/allocations") and not others:
                # Another, which judged as this one did, before either was remembered.
                others.append("")
                others[0] = self.next_by_own_path("anti-affinity", ignore_hosts=["h2"])
            return done

        self.hub.faults.go_down()
        self.addCleanup(self.hub.faults.come_up)
        with mock.patch.object(self.client, "put", put):
            chosen = self.next_by_own_path("anti-affinity")
        self.assertEqual(["h1", "h2"], [*others, chosen])
        self.assertEqual((1, 1), (self.used("h1")["VCPU"], self.used("h2")["VCPU"]))

    def test_another_worker_keeps_to_them_though_it_never_knew_them(self):
        first = self.place_first_ones()
        self.lose()
        self.wait(lambda: all(first[each] in self.members(each) for each in POLICIES))
        self.published()
        own, self.manager = self.manager, test_noted_orphans.NotedCase.other(self)
        with mock.patch.object(
            self.manager.nodb.decisions.placement_mirror, "refusal", lambda: "mirror behind"
        ):
            self.assert_kept(self.next_by_own_path)
        self.manager = own

    def test_a_member_whose_server_was_deleted_meanwhile_ends(self):
        self.runtime.decisions.claim_duty.settler.pace(test_noted_orphans.QUICK)
        first = self.place_first_ones()
        self.lose()
        for server in first.values():
            self.assertEqual(204, self.client.delete(f"/allocations/{server}").status_code)
        self.published()
        self.wait(lambda: not any(first[each] in self.members(each) for each in POLICIES))
        self.assertIn(self.next_by_memory("anti-affinity"), self.nodes)

    def test_moves_keep_to_them(self):
        """A server of the group that is elsewhere asks for a host, as for an evacuation."""
        self.place_first("anti-affinity")
        self.lose()
        self.published()
        server = self.instance(cloud.CELL2, "h2", task_state="rebuilding")
        self.beat()
        group = self.asked("anti-affinity")
        group.members = [server.uuid]
        with self.assertRaises(exception.NoValidHost):
            self.select(instance_group=group, ignore_hosts=["h2"])


class OnServerCase(LostMembersCase):
    def lose(self) -> None:
        self.server.restart()

    def setUp(self) -> None:
        cloud.databases()
        loader.load_class(self.BACK_END).register_opts(cloud.CONF)
        self.server: server_processes.ServerProcess = self.start_server()
        self.override("timeout_seconds", 2.0, f"nodb_{self.BACK_END}")
        super().setUp()
        self.addCleanup(self.synchronizer.close)

    def start_server(self) -> server_processes.ServerProcess:
        raise NotImplementedError

    def published(self) -> None:
        self.reporter.flush()
        super().published()


class MemcachedTest(HeldCases, OnServerCase):
    BACK_END = "memcached"

    def start_server(self) -> server_processes.ServerProcess:
        made = self.enterContext(servers.Memcached("-m", "64", "-M"))
        self.override("servers", [made.address], "nodb_memcached")
        return made.server


class RedisTest(HeldCases, OnServerCase):
    BACK_END = "redis"

    def start_server(self) -> server_processes.ServerProcess:
        made = self.enterContext(redis_server.Redis())
        self.override("url", made.url, "nodb_redis")
        return made.server
