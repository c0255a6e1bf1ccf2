# SPDX-License-Identifier: Apache-2.0
"""Versioned objects of the RPC API: fingerprints, and the way over the wire and back."""

import json
import unittest

import testtools
from oslo_versionedobjects import base, exception, fixture

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.wire import explanations, objects, pending_objects

#: When a line here must change, the object's VERSION must, too (unless the
#: object was never released).
FINGERPRINTS = {
    "NodbColumnInfo": "1.0-0b1eb1b44ab16152d36160d796559e3f",
    "NodbExplainedHost": "1.0-e60039dabc77020d1d09a23cc6545fe3",
    "NodbExplanation": "1.0-4af6f88e49c288e6eb41ca539dad5989",
    "NodbFeedStatus": "1.0-48f7b3b4ab1426c99a0a5a8210432562",
    "NodbHostListPage": "1.0-2992147b31d95c00700400c067d57247",
    "NodbHostShortfall": "1.0-fa906ed66797554fe77fac7256fa7108",
    "NodbHostState": "1.0-100c440b6949c001851543c3ac9f3353",
    "NodbHostStatePage": "1.0-a47836eca3e0f14720048ec4aae94f74",
    "NodbHostStateUpdate": "1.0-f58bdbfa5b9cd5c1b84db66da0b12ecb",
    "NodbListedHost": "1.0-9bd1f8c01b26f69f2fcd368060689e24",
    "NodbListedRequest": "1.0-a86a2d49708da053d53dac3912cf85b4",
    "NodbNamespaceInfo": "1.0-257d8ef96f95aa082a80baf614c26291",
    "NodbPastDecision": "1.0-5500984a9149240232ccd0c8c4f14d64",
    "NodbPastDecisions": "1.0-3924485f4d1eb95ac6cb20ca6a8ba9be",
    "NodbPendingDetails": "1.0-90af74c541b7c953940b09e018e0439b",
    "NodbPendingOutcome": "1.0-5463f77ee37e0cb0d893db05e98dcac0",
    "NodbPendingOutcomes": "1.0-3b973c210cfa05346d203fe0ba15793c",
    "NodbPendingPage": "1.0-8f397e11a478c2308322ae1ff67a15d9",
    "NodbPlacedServer": "1.0-4fa6f8cbf057beb90e5a3beddf95e192",
    "NodbQuarantineEntry": "1.0-74e838287ca0461fed583a12e61e0a5d",
    "NodbRefusedHost": "1.0-598894ce26e3a243800ce0330ac99038",
    "NodbReporterStatus": "1.0-148f14f15dfbd6eed2eccd018b3b7674",
    "NodbSchedulerStatus": "1.0-6b9b6b99ce4acea774c349524c8b39a4",
    "NodbScopeStatus": "1.0-18dd70cd9e912192e7f694514ef9f2f2",
    "NodbStepCount": "1.0-ed88abf8c4b8fe253fe10161ec7c073d",
    "NodbUpdateError": "1.0-2b86a490b778f7591084c42ed9189c60",
    "NodbUpdateResult": "1.0-09bae58d82e3192e194c7af131426e4c",
    "NodbWeigherShare": "1.0-63308cbdb5c4589b7a27b09f54fe59ef",
}


def own_classes():
    for each in (explanations.Explanation, pending_objects.PendingPage):
        assert each.obj_name() in base.VersionedObjectRegistry.obj_classes()  # by their imports
    return {
        name: classes
        for name, classes in base.VersionedObjectRegistry.obj_classes().items()
        if issubclass(classes[0], objects.NodbObject)
    }


class FingerprintTest(testtools.TestCase):
    def test_no_object_changed_without_a_new_version(self):
        checker = fixture.ObjectVersionChecker(own_classes())

        expected, actual = checker.test_hashes(FINGERPRINTS)

        self.assertEqual(expected, actual)

    def test_names_on_the_wire_cannot_meet_those_of_nova(self):
        self.assertTrue(own_classes())
        for name in own_classes():
            self.assertTrue(name.startswith("Nodb"), name)


class WireTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.serializer = objects.Serializer()

    def travel(self, entity):
        """Serialize, go through JSON text, deserialize."""
        primitive = self.serializer.serialize_entity(None, entity)
        return self.serializer.deserialize_entity(None, json.loads(json.dumps(primitive)))

    def test_a_state_arrives_as_it_was_sent(self):
        state = {"row": {"vcpus": 2**63, "ratio": 0.1, "nested": [{"a": [None, True]}], "ü": "é"}}
        update = objects.HostStateUpdate(namespace="pools", key="a", state=state)

        arrived = self.travel([update])

        self.assertEqual(state, arrived[0].state)
        self.assertEqual(("pools", "a"), (arrived[0].namespace, arrived[0].key))

    def test_no_state_arrives_as_none(self):
        arrived = self.travel(objects.HostStateUpdate(namespace="pools", key="a", state=None))

        self.assertIsNone(arrived.state)

    def test_a_page_arrives_with_its_states(self):
        page = objects.HostStatePage(
            states=[
                objects.HostState(namespace="n", key=key, revision=1, version=2, state={"k": key})
                for key in "ab"
            ],
            next_marker="b",
            epoch="e",
            proof_age_seconds=None,
        )

        self.assertEqual(objects.plain(page), objects.plain(self.travel(page)))

    def test_a_state_that_is_no_mapping_is_refused(self):
        with self.assertRaisesRegex(ValueError, "state is a list"):
            objects.HostStateUpdate(namespace="pools", key="a", state=[1])

    def test_damaged_text_names_record_and_field(self):
        primitive = self.serializer.serialize_entity(
            None, objects.HostState(namespace="pools", key="a", revision=1, version=1, state={})
        )
        for text, reason in (("[1]", "not an object"), ("{", "not JSON")):
            primitive["nodb_object.data"]["state"] = text
            with self.subTest(text):
                error = self.assertRaises(
                    errors.InvalidRecord, self.serializer.deserialize_entity, None, primitive
                )
                self.assertEqual("state", error.field)
                self.assertIn(reason, str(error))

    def test_a_value_json_has_not_names_the_field(self):
        update = objects.HostStateUpdate(namespace="pools", key="a", state={"x": {1, 2}})

        error = self.assertRaises(
            errors.InvalidRecord, self.serializer.serialize_entity, None, update
        )

        self.assertEqual(("pools/a", "state"), (error.record, error.field))

    def test_a_newer_version_is_refused_by_name(self):
        primitive = self.serializer.serialize_entity(
            None, objects.HostStateUpdate(namespace="pools", key="a", state=None)
        )
        primitive["nodb_object.version"] = "2.0"

        error = self.assertRaises(
            exception.IncompatibleObjectVersion,
            self.serializer.deserialize_entity,
            None,
            primitive,
        )

        self.assertIn("NodbHostStateUpdate", str(error))

    def test_plain_values_can_be_printed_as_json(self):
        info = objects.NamespaceInfo(
            name="pools",
            owner="cinder",
            schema="1.0",
            columns=[objects.ColumnInfo(name="free", kind="int64", operators=["=="])],
            records=3,
        )

        self.assertEqual(
            {
                "columns": [{"kind": "int64", "name": "free", "operators": ["=="]}],
                "name": "pools",
                "owner": "cinder",
                "records": 3,
                "schema": "1.0",
            },
            json.loads(json.dumps(objects.plain(info))),
        )


if __name__ == "__main__":
    unittest.main()
