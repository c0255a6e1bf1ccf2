# SPDX-License-Identifier: Apache-2.0
"""A truncated, foreign, damaged or hostile checkpoint costs a snapshot, and nothing else."""

import os
import random
import stat
import struct
import tracemalloc
import uuid

import attrs
import numpy as np
import orjson
from testtools import matchers

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.store import stored_pages
from nova_nodb_scheduler.synchronizer.checkpoint import (
    checkpoint_contract,
    checkpoint_file,
    checkpoint_format,
)
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.checkpoint import restarts, test_restart

RefusalReason = checkpoint_contract.CheckpointRefusalReason


class Case(test_restart.Case):
    """A checkpoint of some records of each kind, and a scheduler that ended."""

    def setUp(self):
        super().setUp()
        for number in range(300):
            self.put(f"k{number}", number, zone=f"z{number % 3}")
        restarts.put(self.backend, restarts.GROUPS, "g", {"name": "g", "members": ["x"]})
        self.saved()
        self.path = self.directory / checkpoint_file.NAME
        self.sound = self.path.read_bytes()

    def write(self, content):
        self.path.write_bytes(content)

    def check_refused(self, reason, detail=""):
        made = self.scheduler(identity="two")
        made.catch_up()
        self.assertEqual([reason.value], made.meter.starts, detail)
        self.assertEqual({f"k{n}": n for n in range(300)}, self.free(made), detail)
        self.assertTrue(made.replicator.alive(1))
        made.end()
        return made

    def frames(self):
        """Return kinds and bodies of the sound file."""
        return list(
            checkpoint_format.frames(
                lambda at, length: self.sound[at : at + length], len(self.sound)
            )
        )

    def page(self):
        for kind, body in self.frames():
            if kind == checkpoint_format.ROWS:
                name, page = checkpoint_format.PageReader().page(kind, body)
                if name == "pools":
                    return page
        raise AssertionError("no page")

    def write_frames(self, frames):
        """Write a file of any frames, with checksums that are right."""
        parts = []
        writer = checkpoint_format.FrameWriter(parts.append)
        for kind, body in frames:
            writer.frame(kind, body)
        writer.end()
        self.write(b"".join(parts))


class TestDamage(Case):
    def test_the_sound_one_is_believed(self):
        made = self.scheduler(identity="two")
        made.catch_up()
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)

    def test_one_that_is_cut_short_anywhere_is_damaged(self):
        lengths = {0, 1, 7, 8, 9, len(self.sound) // 2, len(self.sound) - 1}
        chance = random.Random(1)
        lengths |= {chance.randrange(len(self.sound)) for _ in range(10)}
        for length in sorted(lengths):
            self.write(self.sound[:length])
            self.check_refused(RefusalReason.DAMAGED, f"{length} bytes")

    def test_a_byte_that_is_another_is_found_wherever_it_stands(self):
        chance = random.Random(2)
        for at in sorted(chance.sample(range(len(self.sound)), 25)):
            changed = bytearray(self.sound)
            changed[at] ^= 1 << chance.randrange(8)
            self.write(bytes(changed))
            self.check_refused(RefusalReason.DAMAGED, f"byte {at}")

    def test_bytes_behind_its_end_are_damage(self):
        self.write(self.sound + b"\0")
        self.check_refused(RefusalReason.DAMAGED)

    def test_two_sound_ones_in_a_row_are_damage(self):
        self.write(self.sound + self.sound)
        self.check_refused(RefusalReason.DAMAGED)

    def test_a_part_that_is_left_out_or_comes_twice_is_damage(self):
        frames = self.frames()
        ends = len(self.sound)
        first = len(checkpoint_format.MAGIC)
        sizes = [21 + len(body) for _kind, body in frames]
        second = first + sizes[0]
        third = second + sizes[1]
        self.write(self.sound[:second] + self.sound[third:ends])
        self.check_refused(RefusalReason.DAMAGED, "left out")
        self.write(self.sound[:third] + self.sound[second:ends])
        self.check_refused(RefusalReason.DAMAGED, "twice")

    def test_another_format_is_not_read(self):
        self.write(self.sound[:7] + b"\x01" + self.sound[8:])
        self.check_refused(RefusalReason.DAMAGED)
        self.write(b"SQLite format 3\0" + bytes(4096))
        self.check_refused(RefusalReason.DAMAGED)

    def test_damage_that_shows_late_leaves_nothing_of_what_was_read_before(self):
        page = self.page()
        one = attrs.evolve(
            page,
            keys=["only-here"],
            columns={
                "free": page.columns["free"][:1],
                "on": page.columns["on"][:1],
                "zone": attrs.evolve(page.columns["zone"], codes=page.columns["zone"].codes[:1]),
            },
            absent={name: flags[:1] for name, flags in page.absent.items()},
            **{
                name: getattr(page, name)[:1]
                for name in ("revisions", "versions", "owners", "places")
            },
        )
        sound = checkpoint_format.PageWriter().frame("pools", one)
        self.write_frames([*self.frames(), sound])
        believed = self.scheduler(identity="three")
        while believed.replicator.followed() is None:
            believed.replicator.step()
        self.assertIn("only-here", believed.states())
        believed.end()
        wrong = checkpoint_format.PageWriter().frame("pools", attrs.evolve(one, keys=["k1"]))
        self.write_frames([*self.frames(), sound, wrong])
        made = self.check_refused(RefusalReason.DAMAGED)
        self.assertNotIn("only-here", made.states())


class TestServersThatComeTwice(Case):
    """Their keys are bytes, which are looked at together in the end."""

    SERVERS = attrs.evolve(restarts.POOLS, name="servers", uuid_keys=True)

    def scheduler(self, **more):
        return super().scheduler(declared=(*restarts.DECLARED, self.SERVERS), **more)

    def setUp(self):
        super().setUp()
        for number in range(5):
            self.put(f"{uuid.UUID(int=number << 70)}@cell", number, namespace=self.SERVERS)
        self.saved()
        self.sound = self.path.read_bytes()

    def test_a_server_that_stands_in_two_pages_leaves_nothing_of_what_was_read_before(self):
        frames = self.frames()
        [(at, page)] = [
            (at, frame)
            for at, frame in enumerate(frames)
            if frame[0] == checkpoint_format.ROWS
            and checkpoint_format.PageReader().page(*frame)[0] == "servers"
        ]
        for changed in ([*frames, page], [*frames[:at], page, *frames[at:]]):
            self.write_frames(changed)
            made = self.check_refused(RefusalReason.DAMAGED)
            self.assertEqual(5, len(made.states(self.SERVERS)))
        self.write_frames(frames)
        made = self.scheduler(identity="three")
        made.catch_up()
        self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)


class TestForeign(Case):
    def test_a_file_that_others_may_read_or_write_is_not_read(self):
        for mode in (0o640, 0o604, 0o620, 0o602, 0o666):
            self.path.chmod(mode)
            self.check_refused(RefusalReason.UNSAFE, oct(mode))

    def test_a_directory_that_others_may_write_to_is_not_used(self):
        for mode in (0o770, 0o707, 0o777, 0o1777):
            self.directory.chmod(mode)
            made = self.check_refused(RefusalReason.UNSAFE, oct(mode))
            self.assertIs(checkpoint_contract.WriteOutcome.FAILED, made.save())
            self.assertIn("chmod 0700", made.checkpoint.status.detail)

    def test_links_and_what_is_no_file_are_not_read_nor_waited_for(self):
        elsewhere = self.directory.parent / "elsewhere"
        elsewhere.write_bytes(self.sound)
        elsewhere.chmod(0o600)
        for make in (
            lambda: self.path.symlink_to(elsewhere),
            lambda: os.link(elsewhere, self.path),
            lambda: os.mkfifo(self.path, 0o600),
            lambda: self.path.mkdir(mode=0o700),
        ):
            if self.path.exists() or self.path.is_symlink():
                self.path.unlink()
            make()
            self.check_refused(RefusalReason.UNSAFE)

    def test_a_file_of_another_user_is_not_read(self):
        if os.geteuid():
            self.skipTest("only root can give a file away")
        os.chown(self.path, 65534, 65534)
        self.check_refused(RefusalReason.UNSAFE)
        os.chown(self.path, 0, 0)
        os.chown(self.directory, 65534, 65534)
        self.check_refused(RefusalReason.UNSAFE)

    def test_what_is_written_is_readable_by_the_service_alone(self):
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        self.saved()
        self.assertEqual(0o600, stat.S_IMODE(self.path.stat().st_mode))
        self.assertEqual(0o700, stat.S_IMODE(self.directory.stat().st_mode))

    def test_a_writer_follows_no_link_that_somebody_left_for_it(self):
        target = self.directory.parent / "target"
        target.write_text("precious")
        (self.directory / f".{checkpoint_file.NAME}.new").symlink_to(target)
        self.saved()
        self.assertEqual("precious", target.read_text())
        lock = self.directory / f"{checkpoint_file.NAME}.lock"
        lock.unlink()
        lock.symlink_to(target)
        first = self.scheduler()
        first.catch_up()
        self.assertIs(checkpoint_contract.WriteOutcome.FAILED, first.save())


class TestStale(Case):
    def test_one_of_another_driver_or_build_is_not_read(self):
        (kind, header), *rest = self.frames()
        for name, value, reason in (
            ("driver", "etcd", RefusalReason.OTHER_DRIVER),
            ("code", "0" * 64, RefusalReason.OTHER_CODE),
            ("schemas", {"pools": "2.0"}, RefusalReason.OTHER_CODE),
        ):
            said = {**orjson.loads(header), name: value}
            self.write_frames([(kind, orjson.dumps(said)), *rest])
            self.check_refused(reason, name)

    def test_one_from_the_future_is_ahead_of_the_back_end(self):
        (kind, header), *rest = self.frames()
        said = {**orjson.loads(header), "version": 10**9}
        self.write_frames([(kind, orjson.dumps(said)), *rest])
        self.check_refused(RefusalReason.HEAD_BEHIND_CURSOR)

    def test_a_clock_that_jumped_changes_nothing(self):
        for made_at in (-1e300, 0.0, 4e18):
            (kind, header), *rest = self.frames()
            said = {**orjson.loads(header), "made_at": made_at}
            self.write_frames([(kind, orjson.dumps(said)), *rest])
            made = self.scheduler(identity="two")
            made.catch_up()
            self.assertEqual([checkpoint_contract.RESTORED], made.meter.starts)
            made.end()


class TestHostile(Case):
    """Checksums are right, and the content is not."""

    def check_header(self, **changes):
        (kind, header), *rest = self.frames()
        said = {**orjson.loads(header), **changes}
        self.write_frames([(kind, orjson.dumps(said)), *rest])
        self.check_refused(RefusalReason.DAMAGED, str(changes)[:100])

    def test_headers_that_are_none(self):
        for changes in (
            {"epoch": None},
            {"version": -1},
            {"version": 1.5},
            {"version": 2**64 - 1},
            {"made_at": "now"},
            {"schemas": []},
            {"driver": ["memory"]},
            {"witnesses": [["pools"]]},
            {"witnesses": {"a": 1}},
            {"witnesses": [["pools", "k", -1, 0, ""]]},
        ):
            self.check_header(**changes)
        (kind, _header), *rest = self.frames()
        for body in (b"", b"[]", b"null", b"{", b"[" * 2000):
            self.write_frames([(kind, body), *rest])
            self.check_refused(RefusalReason.DAMAGED, repr(body[:10]))
        self.write_frames(rest)
        self.check_refused(RefusalReason.DAMAGED, "no header")
        self.write_frames([])
        self.check_refused(RefusalReason.DAMAGED, "nothing")

    def check_page(self, page, namespace="pools"):
        """Put a page into a file that is otherwise sound."""
        frames = []
        for kind, body in self.frames():
            if kind == checkpoint_format.ROWS:
                name, _page = checkpoint_format.PageReader().page(kind, body)
                if name == "pools":
                    kind, body = checkpoint_format.PageWriter().frame(namespace, page)
            frames.append((kind, body))
        self.write_frames(frames)
        self.check_refused(RefusalReason.DAMAGED)

    def evolved(self, **changes):
        self.check_page(attrs.evolve(self.page(), **changes))

    def test_pages_whose_keys_are_none(self):
        page = self.page()
        for key in ("", "x" * 256, "a\x00b", page.keys[1]):
            self.evolved(keys=[key, *page.keys[1:]])
        self.evolved(keys=page.keys[1:])

    def test_pages_whose_numbers_are_none(self):
        page = self.page()
        for name, value in (("revisions", 0), ("revisions", 2**63 - 1), ("versions", -1)):
            numbers = getattr(page, name).copy()
            numbers[3] = value
            self.evolved(**{name: numbers})
        self.evolved(revisions=page.revisions[:-1])

    def test_pages_whose_payloads_lead_nowhere(self):
        page = self.page()
        for name, value in (("owners", -1), ("owners", 10**6), ("places", 255)):
            numbers = getattr(page, name).copy()
            numbers[3] = value
            self.evolved(**{name: numbers})
        self.evolved(held=[])
        self.evolved(held=[b"\x01\xff\xff"] * len(page.held))
        self.evolved(held=[b""] * len(page.held))
        self.evolved(held=[b"\x07"] * len(page.held))

    def test_pages_whose_columns_are_others(self):
        page = self.page()
        columns = dict(page.columns)
        no_texts = stored_pages.ToldTexts([1, 2, 3])
        codes = columns["zone"].codes.copy()
        codes[0] = 99
        for changed in (
            {**columns, "free": columns["free"][1:]},
            {**columns, "free": columns["free"].astype(np.float64)},
            {**columns, "free": columns["zone"]},
            {**columns, "zone": columns["free"]},
            {**columns, "zone": attrs.evolve(columns["zone"], codes=codes)},
            {**columns, "zone": attrs.evolve(columns["zone"], codes=-1 - codes)},
            {**columns, "zone": attrs.evolve(columns["zone"], texts=no_texts)},
            {**columns, "on": np.full(300, 2, np.uint8).view(np.bool_)},
            {"free": columns["free"]},
        ):
            self.evolved(columns=changed)
        self.evolved(absent={})
        self.evolved(absent={name: flags[1:] for name, flags in page.absent.items()})

    def test_pages_of_namespaces_that_are_not_followed_or_not_plain(self):
        for namespace in ("nobody", "groups", "schedulers", ""):
            self.check_page(self.page(), namespace)
        self.evolved(digests=stored_pages.DumpedDigests(np.zeros(0, np.int32), b""), keys=[])

    def test_records_that_cannot_be_read_or_have_no_name(self):
        frames = self.frames()
        name = records.RecordKey("groups", "other")
        for record in (
            records.Record(name, 5, 5, b"nonsense"),
            records.Record(name, 5, 5, b""),
            records.Record(records.RecordKey("nobody", "x"), 5, 5, codec.encode({}, restarts.V1)),
            records.Record(name, 0, 5, codec.encode({}, restarts.V1)),
            records.Record(records.RecordKey("groups", "a\tb"), 1, 5, b"x"),
        ):
            body = checkpoint_format.PageWriter().frame(record.key.namespace, [record])
            self.write_frames([*frames, body])
            self.check_refused(RefusalReason.DAMAGED, str(record))

    def test_lengths_that_reach_beyond_the_file_take_no_memory(self):
        frames = self.frames()
        for body in (b"\xff\xff\xff\xff", b"\x04\x00\x00\x00{}{}", b"\x00" * 40, b"\x02\0\0\0{}"):
            for kind in (checkpoint_format.ROWS, checkpoint_format.RECORDS, 77):
                self.write_frames([*frames, (kind, body)])
                self.check_refused(RefusalReason.DAMAGED, repr((kind, body)))

    def test_short_parts_that_name_many_things_are_refused_before_these_are_made(self):
        many = 4 << 20

        def packed(*parts):
            return b"".join(struct.pack("<I", len(part)) + part for part in parts)

        meta = orjson.dumps({"namespace": "pools", "columns": {}, "absent": [], "digests": False})
        for kind, body in (
            (checkpoint_format.RECORDS, packed(b"pools", b"\n" * many, *[b""] * 4)),
            (checkpoint_format.RECORDS, packed(b"pools", b"a", b"", b"", bytes(many), b"")),
            (checkpoint_format.ROWS, packed(meta, b"\n" * many)),
            (checkpoint_format.ROWS, packed(meta, b"a", b"", b"", bytes(many), b"")),
            (checkpoint_format.ROWS, packed(b"[" + b"[]," * many + b"[]]")),
        ):
            tracemalloc.start()
            try:
                reader = checkpoint_format.PageReader()
                self.assertRaises(checkpoint_format.Damaged, reader.page, kind, body)
                _now, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            # Its parts are copied once.
            self.assertThat(peak_bytes, matchers.LessThan(2 * len(body) + (1 << 20)))

    def test_any_change_of_a_body_is_refused_or_taken_and_never_crashes(self):
        chance = random.Random(3)
        frames = self.frames()
        for number in range(60):
            at = chance.randrange(len(frames))
            kind, body = frames[at]
            changed = bytearray(body)
            for _ in range(chance.choice((1, 1, 5, 50))):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            self.write_frames([*frames[:at], (kind, bytes(changed)), *frames[at + 1 :]])
            made = self.scheduler(identity=f"n{number}")
            made.catch_up()
            self.assertTrue(made.replicator.alive(1))
            self.assertEqual(1, len(made.meter.starts))
            if made.meter.starts == [checkpoint_contract.RESTORED]:
                # What it believes it can say, or says that it cannot.
                view = made.store.snapshot().namespace("pools")
                for key in view.row_keys():
                    try:
                        view.state(key)
                    except codec.errors.UndecodableRecord:
                        pass
            made.end()
