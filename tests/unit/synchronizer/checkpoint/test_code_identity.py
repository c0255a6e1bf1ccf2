# SPDX-License-Identifier: Apache-2.0
"""Whatever rows depend on makes another code; what they do not depend on makes none."""

import functools
import time
import unittest

import attrs

from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.checkpoint import code_identity
from nova_nodb_scheduler.wire import decoded_sizes


class CodeIdentityTest(unittest.TestCase):
    def setUp(self) -> None:
        self.declared = known_namespaces.BUILT_IN
        self.own = code_identity.identify("sqlalchemy", self.declared)

    def test_the_same_code_is_the_same_in_any_order_of_namespaces(self) -> None:
        again = code_identity.identify("sqlalchemy", tuple(reversed(self.declared)))
        self.assertEqual(self.own, again)

    def test_a_changed_declaration_is_another_code(self) -> None:
        first, *rest = self.declared
        more = namespaces.Column("more", namespaces.Kind.INT, ("more",))
        for changed in (
            attrs.evolve(first, schema=namespaces.SchemaVersion(1, 1)),
            attrs.evolve(first, columns=(*first.columns, more)),
            attrs.evolve(first, columns=tuple(reversed(first.columns))),
            attrs.evolve(first, indexes=first.indexes[1:]),
            attrs.evolve(first, digest=_digest),
            attrs.evolve(first, digest_form=None),
            attrs.evolve(first, name="others"),
        ):
            with self.subTest(changed=str(changed)[:60]):
                other = code_identity.identify("sqlalchemy", (changed, *rest))
                self.assertIsNotNone(other)
                self.assertNotEqual(self.own.code, other.code)  # type: ignore[union-attr]

    def test_a_namespace_more_is_another_code_and_names_its_schema(self) -> None:
        other = code_identity.identify("sqlalchemy", self.declared[1:])
        self.assertNotEqual(self.own, other)
        self.assertEqual("1.0", self.own.schemas["compute_nodes"])  # type: ignore[union-attr]

    def test_another_bound_of_records_is_another_code(self) -> None:
        former = decoded_sizes.present()
        self.addCleanup(decoded_sizes.set_for_process, former)
        decoded_sizes.set_for_process(decoded_sizes.DecodingBounds(former.text_bytes * 2))
        self.assertNotEqual(self.own, code_identity.identify("sqlalchemy", self.declared))

    def test_sources_that_were_replaced_since_the_process_began_are_none_of_its_own(self) -> None:
        self.assertIsNotNone(code_identity.code_of(self.declared, time.time()))
        self.assertIsNone(code_identity.code_of(self.declared, 0.0))

    def test_a_digest_whose_source_nobody_can_read_is_none_to_tell(self) -> None:
        first, *rest = self.declared
        changed = attrs.evolve(first, digest=functools.partial(_digest))
        self.assertIsNone(code_identity.identify("sqlalchemy", (changed, *rest)))

    def test_another_driver_is_another_identity_of_the_same_code(self) -> None:
        other = code_identity.identify("etcd", self.declared)
        self.assertNotEqual(self.own, other)
        self.assertEqual(self.own.code, other.code)  # type: ignore[union-attr]


def _digest(key: str, state: object) -> object:
    return key
