# SPDX-License-Identifier: Apache-2.0
"""Where a group's servers are, as Nova's group policies name places."""

import functools

import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims, records, requests
from nova_nodb_scheduler.scheduling.facts import group_members
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.claims import group_rules
from tests.unit.scheduling import claims, hosts

INSTANCES, MIGRATIONS = known_namespaces.INSTANCES, known_namespaces.MIGRATIONS


def group(policy="anti-affinity", members=(), named=(), most=1):
    return requests.Group(
        "g", policy, frozenset([policy]), frozenset(members), frozenset(named), most
    )


class GroupMembersTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.hosts = hosts.Hosts()

    def known(self, group):
        return group_members.known(self.hosts.store.snapshot(), group)

    def stands(self, name, host="h1", cell=hosts.CELL):
        self.hosts.put(INSTANCES, f"{name}@{cell}", claims.instance(name, host, cell=cell))

    def test_members_stand_where_their_instances_are_in_any_cell(self):
        self.stands("a")
        self.stands("b", "h2", hosts.OTHER_CELL)
        self.stands("foreign", "h3")

        self.assertEqual({"a": {"h1"}, "b": {"h2"}}, self.known(group(members="abc")))

    def test_a_member_that_moves_is_on_both_hosts(self):
        self.stands("a")
        self.hosts.put(MIGRATIONS, f"m-a@{hosts.CELL}", claims.migration("a", "h9"))

        self.assertEqual({"a": {"h1", "elsewhere", "h9"}}, self.known(group(members="a")))

    def test_hosts_that_the_request_names_count_until_a_member_is_known(self):
        named = group("affinity", members="a", named=["h5"])
        self.assertEqual({group_members.UNKNOWN_MEMBER: {"h5"}}, self.known(named))
        self.stands("a")
        self.assertEqual({"a": {"h1"}}, self.known(named))

    def test_all_nodes_of_a_host_are_one_place_as_for_nova(self):
        for uuid in ("n1", "n2"):
            self.hosts.put(known_namespaces.COMPUTE_NODES, uuid, hosts.node(uuid, "h1"))
        snapshot = self.hosts.store.snapshot()
        place = group_members.place_of(snapshot, "n2")
        self.assertEqual("h1", place)
        self.assertEqual("n3", group_members.place_of(snapshot, "n3"))
        self.assertEqual({"n1", "n2"}, group_members.nodes_of(snapshot, [place]))
        self.stands("a")
        claim = model.Claim("b", "n2", {}, place=place)
        proposal = self.join("anti-affinity", claim, group_claims.GroupRecord("g"))
        self.assertIsNone(proposal.state)
        [broken] = proposal.answer
        self.assertIs(model.RefusalReason.GROUP_POLICY, broken.refused.reason)

    def join(self, policy, claim, record):
        snapshot = self.hosts.store.snapshot()
        joining = group_rules.Joining(
            group_claims.ServerGroup("g", group_claims.Policy(policy)),
            {claim.consumer: "id"},
            "writer",
            self.known(group(members="ab")),
            records.Cursor("epoch", 9),
            0.0,
            60.0,
            functools.partial(group_members.place_of, snapshot),
        )
        return group_rules.join_each(record, [claim], joining)

    def test_a_member_that_a_former_release_noted_by_its_node_is_where_its_host_is(self):
        for number in (1, 2):
            node = hosts.node(f"n{number}", f"h{number}")
            self.hosts.put(known_namespaces.COMPUTE_NODES, f"n{number}", node)
        noted = group_claims.Member(model.ClaimState.PENDING, "id of a", "old", 60.0)
        record = group_claims.GroupRecord("g", {("a", "n1"): noted})
        beside, away = (model.Claim("b", f"n{n}", {}, place=f"h{n}") for n in (1, 2))
        # Shown on its way, too, it is on one host and not on two.
        for shown in (False, True):
            if shown:
                self.stands("a")
            self.assertIsNotNone(self.join("affinity", beside, record).state)
            self.assertIsNotNone(self.join("anti-affinity", away, record).state)
            for policy, claim in (("affinity", away), ("anti-affinity", beside)):
                proposal = self.join(policy, claim, record)
                self.assertIsNone(proposal.state)
                self.assertEqual({"h1"}, proposal.answer[0].hosts)
        # Whoever noted it finds it by what he called it.
        written = self.join("affinity", beside, record).state
        self.assertEqual(
            {"a": {"n1"}, "b": {"h1"}}, {n: {*p} for n, p in written["members"].items()}
        )
