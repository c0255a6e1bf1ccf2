# SPDX-License-Identifier: Apache-2.0
"""The RPC API from client to store and back."""

import inspect

import oslo_messaging
import testtools
from oslo_messaging._drivers import common

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.rpc import api, client
from nova_nodb_scheduler.wire import codec, objects
from tests.unit.rpc import cloud


def pool(free_gb, **more):
    return {"pool": {"free_gb": free_gb}, **more}


class UpdateTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(cloud.CloudFixture())
        self.client = self.cloud.client

    def update(self, states, owner="cinder"):
        return self.client.update_host_states(
            {}, owner, {("pools", key): state for key, state in states.items()}
        )

    def held(self):
        self.cloud.catch_up()
        view = self.cloud.store.snapshot().namespace("pools")
        return {key: view.get(key).state for key in sorted(view.keys())}

    def test_what_is_written_reaches_the_store(self):
        result = self.update({"a": pool(1), "b": pool(2)})

        self.assertEqual(
            (2, 0, 0, []), (result.published, result.unchanged, result.deleted, result.errors)
        )
        self.assertEqual({"a": pool(1), "b": pool(2)}, self.held())
        self.assertLessEqual(result.version, self.cloud.replicator.status().cursor_version)

    def test_the_same_call_again_changes_nothing(self):
        self.update({"a": pool(1)})

        result = self.update({"a": pool(1)})

        self.assertEqual((0, 1), (result.published, result.unchanged))

    def test_none_deletes(self):
        self.update({"a": pool(1), "b": pool(2)})

        self.assertEqual(1, self.update({"a": None}).deleted)
        self.assertEqual({"b": pool(2)}, self.held())

    def test_good_records_are_published_and_bad_ones_are_errors_by_field(self):
        result = self.update({"a": pool(1), "b": pool("x" * 5), "c": pool(3)})

        self.assertEqual({"a", "c"}, set(self.held()))
        [error] = result.errors
        self.assertEqual(("pools/b", "pool.free_gb"), (error.record, error.field))

    def test_a_record_the_back_end_cannot_take_is_an_error_of_that_record(self):
        self.cloud.write("pools", {"a": pool(1)}, owner="cinder")
        newer = self.newer_major("a")

        result = self.update({"a": pool(2), "b": pool(3)})

        [error] = result.errors
        self.assertEqual(("pools/a", "(record)"), (error.record, error.field))
        self.assertIn(newer, error.reason)
        self.assertEqual(1, result.published)

    def newer_major(self, key):
        """Have a newer release write a record."""
        name = records.RecordKey("pools", key)
        revision = self.cloud.synchronizer.read([name])[name].revision
        payload = codec.encode(pool(9), namespaces.SchemaVersion(2, 0))
        self.cloud.synchronizer.write([records.Write(name, revision, payload)])
        return "2.0"

    def test_a_refused_call_writes_nothing_and_reaches_the_caller_as_it_is(self):
        error = self.assertRaises(errors.NotOwner, self.update, {"a": pool(1)}, "nova")

        self.assertEqual(("pools", "cinder"), (error.namespace, error.owner))
        self.assertEqual({}, self.held())

    def test_a_back_end_that_is_down_reaches_the_caller_by_name(self):
        self.cloud.hub.faults.go_down()
        self.addCleanup(self.cloud.hub.faults.come_up)

        self.assertRaises(errors.BackendUnavailable, self.update, {"a": pool(1)})


class ReadTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(cloud.CloudFixture())
        self.client = self.cloud.client
        self.cloud.write(
            "pools", {key: pool(number) for number, key in enumerate("abcdefgh")}, owner="cinder"
        )

    def keys(self, **arguments):
        page = self.client.get_host_states({}, "pools", **arguments)
        return [state.key for state in page.states], page.next_marker

    def test_all_pages_together_hold_every_record_once(self):
        found = [state.key for state in self.client.iterate_host_states({}, "pools")]

        self.assertEqual(list("abcdefgh"), found)

    def test_the_longest_name_ends_no_walk_through_the_pages(self):
        longest = "\u4e3b" * 255
        self.cloud.write("pools", {longest: pool(1), longest[1:]: pool(2)}, owner="cinder")

        self.assertEqual(([longest[1:]], longest[1:]), self.keys(limit=1, marker="h"))
        self.assertEqual(([longest], None), self.keys(limit=1, marker=longest[1:]))
        self.assertEqual(([longest], None), self.keys(keys=[longest]))

    def test_a_page_is_never_larger_than_the_servers_bound(self):
        self.assertEqual((["a", "b", "c"], "c"), self.keys(limit=1000))
        self.assertEqual((["a"], "a"), self.keys(limit=1))

    def test_records_are_found_by_key(self):
        self.assertEqual((["b", "h"], None), self.keys(keys=["h", "b", "z"]))

    def test_records_are_found_by_predicate(self):
        self.assertEqual((["g", "h"], None), self.keys(predicate=[["free_gb", ">", 5]]))

    def test_a_record_comes_with_state_and_revision(self):
        [found] = self.client.get_host_states({}, "pools", keys=["c"]).states

        stored = self.cloud.store.snapshot().namespace("pools").get("c")
        self.assertEqual(pool(2), found.state)
        self.assertEqual((stored.revision, stored.version), (found.revision, found.version))

    def test_a_page_says_which_epoch_it_is_of(self):
        page = self.client.get_host_states({}, "pools")

        self.assertEqual(self.cloud.synchronizer.head().epoch, page.epoch)

    def test_more_keys_than_a_page_holds_are_refused(self):
        error = self.assertRaises(errors.LimitExceeded, self.keys, keys=list("abcd"))

        self.assertIn("rpc_page_size", str(error))

    def test_an_unknown_namespace_and_a_bad_condition_reach_the_caller(self):
        self.assertRaises(errors.UnknownNamespace, self.client.get_host_states, {}, "tapes")
        error = self.assertRaises(errors.InvalidPredicate, self.keys, predicate=[["size", "==", 1]])
        self.assertIn("free_gb", str(error))

    def test_an_empty_value_that_is_no_predicate_does_not_stand_for_all_records(self):
        for predicate in ({}, "", 0, False):
            # As whoever has no client of ours may send it.
            error = self.assertRaises(
                errors.InvalidPredicate,
                self.client._call,
                {},
                None,
                "get_host_states",
                namespace="pools",
                predicate=predicate,
            )
            self.assertIn("[column, operator, value]", str(error))
        self.assertEqual((["a", "b", "c"], "c"), self.keys(predicate=[]))

    def test_one_scheduler_can_be_asked_by_its_host(self):
        self.assertEqual(3, len(self.client.get_host_states({}, "pools", server="sched1").states))

    def test_a_host_nobody_listens_for_times_out(self):
        impatient = client.Client(self.cloud.transport, self.cloud.topic, objects.Serializer(), 0.2)

        self.assertRaises(
            oslo_messaging.MessagingTimeout, impatient.list_namespaces, {}, server="nobody"
        )

    def test_namespaces_tell_owner_columns_operators_and_records(self):
        found = {each.name: each for each in self.client.list_namespaces({})}

        pools = found["pools"]
        self.assertEqual(("cinder", "1.0", 8), (pools.owner, pools.schema, pools.records))
        self.assertEqual(
            [("free_gb", "int64"), ("ratio", "float64"), ("thin", "bool")],
            [(column.name, column.kind) for column in pools.columns[:3]],
        )
        self.assertEqual(["==", "!=", "in"], pools.columns[2].operators)
        self.assertIn("compute_nodes", found)


class RemoteErrorTest(testtools.TestCase):
    def test_every_error_is_rebuilt_on_the_callers_side(self):
        classes = [
            cls
            for _, cls in inspect.getmembers(errors, inspect.isclass)
            if issubclass(cls, errors.NodbError)
        ]
        self.assertGreater(len(classes), 5)
        for cls in classes:
            with self.subTest(cls.__name__):
                count = len(inspect.signature(cls.__init__).parameters) - 1
                arguments = [f"a{number}" for number in range(count)]
                if cls in (errors.LimitExceeded, errors.PayloadTooLarge):
                    arguments[1:3] = [7, 5]
                if cls is errors.NoAnswerInTime:
                    arguments[0] = 5.0
                error = cls(*(arguments if cls is not errors.NodbError else ["text"]))

                remote = self.travel(error)
                rebuilt = client._as_raised(remote)

                self.assertIs(cls, type(rebuilt))
                self.assertEqual((error.args, str(error)), (rebuilt.args, str(rebuilt)))

    @staticmethod
    def travel(error):
        try:
            raise error
        except errors.NodbError as raised:
            data = common.serialize_remote_exception((type(raised), raised, None))
        return common.deserialize_remote_exception(data, list(api.EXCEPTION_MODULES))
