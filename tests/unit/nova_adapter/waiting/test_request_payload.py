# SPDX-License-Identifier: Apache-2.0
"""A payload comes back as it was, to who has the key, for the request that it is of."""

import unittest
import uuid

from cryptography import fernet
from nova import context as nova_context
from nova import objects
from nova.objects import base

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import request_digest, request_payload

SERVER = str(uuid.uuid4())


def spec(server=SERVER, **more):
    flavor = objects.Flavor(
        id=1,
        name="small",
        flavorid="1",
        vcpus=2,
        memory_mb=512,
        root_gb=3,
        ephemeral_gb=1,
        swap=1024,
        extra_specs={"nodb:wait": "60"},
    )
    values = {
        "flavor": flavor,
        "instance_uuid": server,
        "project_id": "project",
        "user_id": "user",
        "num_instances": 1,
        "image": None,
        "pci_requests": None,
        "numa_topology": None,
        "availability_zone": None,
        "instance_group": None,
        "scheduler_hints": {"nodb_wait": ["60"]},
        "requested_resources": [],
        **more,
    }
    return objects.RequestSpec(
        nova_context.RequestContext("user", "project", is_admin=False), **values
    )


def arguments(**more):
    values = {
        "request_specs": [spec()],
        "image": {"id": "image", "properties": {}},
        "admin_password": "s3cret-word",
        "injected_files": [["/etc/motd", "aGVsbG8="]],
        "requested_networks": objects.NetworkRequestList(
            objects=[objects.NetworkRequest(network_id="net")]
        ),
        "block_device_mapping": objects.BlockDeviceMappingList(objects=[]),
        "tags": objects.TagList(objects=[]),
        **more,
    }
    return request_payload.BuildArguments(**values)


def primitive(spec):
    """Return an object as JSON has it, whatever the order of its changed fields."""
    return base.obj_to_primitive(spec)


class PayloadCase(unittest.TestCase):
    def setUp(self):
        super().setUp()
        objects.register_all()
        self.key = request_payload.new_key()
        self.cipher = request_payload.PayloadCipher([self.key])
        self.context = nova_context.RequestContext(
            "user", "project", auth_token="t0ken-of-the-user", roles=["member"], is_admin=False
        )

    def packed(self, **more):
        return request_payload.pack(self.cipher, SERVER, self.context, arguments(**more))


class RestoringTest(PayloadCase):
    def test_all_comes_back(self):
        context, restored = request_payload.unpack(self.cipher, SERVER, self.packed())
        self.assertEqual(
            ("t0ken-of-the-user", "user", "project", ["member"]),
            (context.auth_token, context.user_id, context.project_id, context.roles),
        )
        expected = arguments()
        self.assertEqual(
            [primitive(each) for each in expected.request_specs],
            [primitive(each) for each in restored.request_specs],
        )
        for name in ("image", "admin_password", "injected_files"):
            self.assertEqual(getattr(expected, name), getattr(restored, name))
        self.assertEqual("net", restored.requested_networks[0].network_id)

    def test_nothing_of_it_can_be_read(self):
        payload = self.packed()
        for secret in ("s3cret-word", "t0ken-of-the-user", "motd", "project"):
            self.assertNotIn(secret, payload)

    def test_specs_that_differ_little_take_little(self):
        one = len(self.packed())
        many = len(self.packed(request_specs=[spec(str(uuid.uuid4())) for _ in range(100)]))
        self.assertLess(many, 6 * one)

    def test_some_of_several_servers(self):
        other = str(uuid.uuid4())
        both = arguments(request_specs=[spec(), spec(other)])
        left = both.of_servers([other])
        self.assertEqual([other], [each.instance_uuid for each in left.request_specs])


class KeysTest(PayloadCase):
    def test_a_new_key_goes_first_while_the_old_one_stays(self):
        payload = self.packed()
        both = request_payload.PayloadCipher([request_payload.new_key(), self.key])
        request_payload.unpack(both, SERVER, payload)
        new = request_payload.pack(both, SERVER, self.context, arguments())
        with self.assertRaises(errors.UndecodableRecord):
            request_payload.unpack(self.cipher, SERVER, new)

    def test_another_key_says_which_option_is_to_be_looked_at(self):
        other = request_payload.PayloadCipher([request_payload.new_key()])
        with self.assertRaisesRegex(errors.UndecodableRecord, r"\[nodb_queue\] key"):
            request_payload.unpack(other, SERVER, self.packed())

    def test_no_key_and_what_is_none_are_refused_and_not_shown(self):
        for keys in ([], ["not-a-key"], [self.key, "ü" * 44], [self.key[:-2]]):
            with self.assertRaisesRegex(errors.ConfigurationError, r"\[nodb_queue\] key") as told:
                request_payload.PayloadCipher(keys)
            for key in keys:
                self.assertNotIn(key, str(told.exception))


class ForeignPayloadsTest(PayloadCase):
    def assert_refused(self, payload, text=""):
        with self.assertRaisesRegex(errors.UndecodableRecord, text):
            request_payload.unpack(self.cipher, SERVER, payload)

    def test_the_payload_of_another_request_is_refused(self):
        other = str(uuid.uuid4())
        payload = request_payload.pack(self.cipher, other, self.context, arguments())
        self.assert_refused(payload, "another one's")

    def test_what_was_changed_or_cut_short_is_refused(self):
        payload = self.packed()
        changed = payload[:50] + ("A" if payload[50] != "A" else "B") + payload[51:]
        for wrong in (changed, payload[:-8], "", "ä", "x" * 100):
            self.assert_refused(wrong)

    def test_what_is_encrypted_but_no_request_is_refused(self):
        for content in (b"", b"[]", b"{}", b'{"format": 1}', b'{"format": 2}', b"\xff"):
            self.assert_refused(self.cipher.encrypt(content))
        self.assert_refused(fernet.Fernet(self.key).encrypt(b"not compressed").decode())

    def test_what_would_grow_beyond_all_bounds_is_refused(self):
        self.assert_refused(self.cipher.encrypt(bytes(70 * 1024 * 1024)), "too large")


class DigestTest(unittest.TestCase):
    def setUp(self):
        super().setUp()
        objects.register_all()

    def test_ids_and_our_own_hints_do_not_count(self):
        one = request_digest.queue(spec(), 1)
        other = spec(str(uuid.uuid4()), id=7, scheduler_hints={"nodb_class": ["low"]})
        self.assertEqual(one, request_digest.queue(other, 1))

    def test_whatever_filters_look_at_counts(self):
        digests = {
            request_digest.queue(each, servers)
            for each, servers in (
                (spec(), 1),
                (spec(), 2),
                (spec(project_id="other"), 1),
                (spec(availability_zone="az"), 1),
                (spec(scheduler_hints={"different_host": ["x"]}), 1),
                (spec(force_hosts=["h1"]), 1),
                (spec(image=objects.ImageMeta(id=SERVER, min_ram=7)), 1),
                (spec(instance_group=objects.InstanceGroup(uuid=SERVER)), 1),
            )
        }
        self.assertEqual(8, len(digests))

    def test_images_that_differ_by_their_ids_alone_are_two_for_isolated_hosts_are_told_by_them(
        self,
    ):
        one, other = (
            request_digest.queue(spec(image=objects.ImageMeta(id=name, name="image")), 1)
            for name in (SERVER, str(uuid.uuid4()))
        )
        self.assertNotEqual(one, other)

    def test_hints_and_extra_specs_may_have_names_of_what_does_not_count_in_objects(self):
        def tagged(extra_specs):
            made = spec()
            made.flavor.extra_specs = extra_specs
            return made

        digests = {
            request_digest.queue(each, 1)
            for each in (
                spec(),
                *(spec(scheduler_hints={"tag": [text]}) for text in ("a", "b")),
                spec(scheduler_hints={"hosts": ["a"]}),
                *(tagged({"id": text}) for text in ("a", "b")),
            )
        }
        self.assertEqual(6, len(digests))

    def test_whose_it_is_counts_apart_from_what_it_asks_for(self):
        one, others, larger = (
            pending.demand(request_digest.queue(each, servers))
            for each, servers in (
                (spec(), 1),
                (spec(project_id="other", user_id="other"), 1),
                (spec(), 2),
            )
        )
        self.assertEqual(one, others)
        self.assertNotEqual(one, larger)

    def test_who_is_in_a_group_does_not_count(self):
        def of(hosts):
            group = objects.InstanceGroup(uuid=SERVER, hosts=hosts, members=[])
            return request_digest.queue(spec(instance_group=group), 1)

        self.assertEqual(of(["h1"]), of(["h2"]))

    def test_needs_are_those_of_the_allocation(self):
        self.assertEqual({"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}, request_digest.needs(spec()))
