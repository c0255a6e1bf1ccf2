# SPDX-License-Identifier: Apache-2.0
"""Provider trees of which the record in memory tells nothing, though its generation is right."""

from __future__ import annotations

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.nova_adapter.placement.mirror import hinted_reads, mirror_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec
from tests.unit.nova_adapter.placement import plain_placement, test_own_writes
from tests.unit.scheduling import hosts

ROOT, OTHER = test_own_writes.ROOT, test_own_writes.OTHER
PROVIDERS, NODES = known_namespaces.PROVIDERS, known_namespaces.COMPUTE_NODES


class UnseenCase(test_own_writes.PlainCase):
    def write(self, namespace: namespaces.Namespace, payload: bytes | None) -> None:
        """Have somebody write the record of a root; None deletes it. The first one follows."""
        key = records.RecordKey(namespace.name, ROOT)
        found = self.two.synchronizer.read([key]).get(key)
        revision = 0 if found is None or found.deleted else found.revision
        if payload is None:
            write = records.Write(key, revision, deleted=True)
        else:
            write = records.Write(key, revision, payload)
        [result] = self.two.synchronizer.write([write])
        self.assertTrue(result.won)
        self.one.follow()

    def stored(self) -> bytes:
        key = records.RecordKey(PROVIDERS.name, ROOT)
        return self.two.synchronizer.read([key])[key].payload

    def trait(self) -> str:
        self.one.follow()
        record = self.one.record(ROOT)
        assert record is not None
        [trait] = record["traits"]
        return str(trait)


class UnreadableTest(UnseenCase):
    """A record that cannot be read leaves the one before it in memory."""

    def newer(self) -> bytes:
        """Return what the next major release writes."""
        schema = namespaces.SchemaVersion(PROVIDERS.schema.major + 1, 0)
        return codec.encode({"of": "a later release"}, schema)

    def test_a_tree_that_was_compared_a_moment_ago_is_read_anew(self) -> None:
        self.assertEqual(frozenset(), self.one.chosen.behind([ROOT], self.one.snapshot()))
        planned_on = self.one.snapshot()
        self.placement.describe(ROOT)
        self.write(PROVIDERS, b"damaged")
        logger = "nova_nodb_scheduler.nova_adapter.placement.mirror.chosen_trees"
        with self.assertLogs(logger, "WARNING"):
            behind = self.one.chosen.behind([ROOT, OTHER], planned_on)
        self.assertEqual({ROOT}, behind)
        self.assertEqual(self.placement.providers[ROOT].trait, self.trait())
        self.assertEqual(1, self.one.chosen.read_anew)
        self.assertEqual(frozenset(), self.one.chosen.behind([ROOT], self.one.snapshot()))

    def test_what_a_newer_release_wrote_is_placements_and_stays(self) -> None:
        newer = self.newer()
        self.write(PROVIDERS, newer)
        for _ in range(2):
            with self.assertRaisesRegex(errors.NodbError, "cannot be read"):
                self.one.chosen.behind([ROOT], self.one.snapshot())
        self.assertEqual(newer, self.stored())
        self.assertEqual(frozenset(), self.one.chosen.behind([OTHER], self.one.snapshot()))

    def test_no_write_depends_on_what_the_record_before_it_said(self) -> None:
        self.clocks.true += 2 * plain_placement.BOUND_SECONDS
        self.write(PROVIDERS, self.newer())
        condition = self.one.chosen.condition([ROOT, OTHER], self.one.snapshot())
        assert condition is not None
        self.assertEqual({OTHER}, condition.wanted.keys())

    def test_a_sweep_that_meets_the_same_generation_reads_it_anew(self) -> None:
        self.write(PROVIDERS, b"damaged")
        self.one.sweep()
        self.assertNotEqual(b"damaged", self.stored())
        self.assertEqual(self.placement.providers[ROOT].trait, self.trait())

    def test_nobody_is_refused_by_what_the_record_before_it_said(self) -> None:
        mirror = mirror_proof.PlacementMirror(
            self.one.store.snapshot,
            self.one.epoch,
            self.clocks.backend,
            self.one.reader,
            self.one.trees,
            180.0,
            clock=self.clocks.monotonic,
            **self.unreadable(),
        )
        self.write(PROVIDERS, b"damaged")
        proof = mirror.prove_current(self.clocks.monotonic(), {"VCPU": 1})
        self.assertEqual(({ROOT}, True), (proof.changed, proof.complete))
        self.write(PROVIDERS, self.newer())
        self.assertFalse(mirror.prove_current(self.clocks.monotonic(), {"VCPU": 1}).complete)

    def unreadable(self) -> dict[str, object]:
        return {"unreadable": self.one._replicator.quarantine.at_this_moment}


class ReplacedTest(UnseenCase):
    """A provider that was deleted and made again, and has come to its former generation."""

    def begin(self) -> None:
        super().begin()
        self.node = codec.encode(hosts.node(ROOT, "h1"), NODES.schema)
        self.write(NODES, self.node)
        self.reads = hinted_reads.HintedReads(
            self.one.snapshot(),
            self.one.trees,
            self.one.reader,
            publisher.Publisher(
                self.one.synchronizer,
                {each.name: each for each in known_namespaces.BUILT_IN},
                known_namespaces.NODB,
            ),
            self.clocks.monotonic,
        )

    def make_again(self) -> None:
        generation = self.placement.providers[ROOT].generation
        made = type(self.placement.providers[ROOT])(generation, "CUSTOM_MADE_AGAIN")
        self.placement.providers[ROOT] = made

    def look(self) -> None:
        self.reads.follow(self.one.snapshot(), lambda root: False)
        for seconds in (2.0, 6.0, 21.0):
            self.clocks.true += seconds
            self.reads.look(self.one.snapshot(), 10)
            self.one.follow()

    def test_it_is_read_as_soon_as_its_node_is_gone(self) -> None:
        self.write(NODES, None)
        self.make_again()
        self.look()
        self.assertEqual("CUSTOM_MADE_AGAIN", self.trait())

    def test_it_is_read_as_its_node_comes_back_however_long_that_takes(self) -> None:
        self.write(NODES, None)
        self.look()
        self.write(NODES, self.node)
        self.make_again()
        self.look()
        self.assertEqual("CUSTOM_MADE_AGAIN", self.trait())
