# SPDX-License-Identifier: Apache-2.0
"""Any interleaving on a real Redis is what a plain dict of records says it must be.

Hypothesis draws writes, deletions, reads, fetches, single pages of snapshots, collections,
lost and late requests, lost replies, lost keys, data put back, flushed scripts and broken
connections, and what others do between a client's look at the epoch and its write. Since the
server carries out one script at a time, the model says exactly what each must answer: each
result, each fetch, and why a reader must take a snapshot again.
Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import enum
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import attrs
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import redis
from nova_nodb_scheduler.synchronizer.drivers.redis import connection, driver, layout, scripts
from tests import machine_runs
from tests.functional.synchronizer.drivers.redis import redis_case

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "40"))
STEPS = 50

Verdict = records.Verdict

#: Of names, what a server, a script or a pattern might mistake for its own.
KEYS = tuple(
    records.RecordKey(namespace, name)
    for namespace, name in (
        ("suite", "a"),
        ("suite", "(1"),
        ("suite", "+inf"),
        ("other", "a"),
        ("other", "%f {x} 'q\" \\31"),
        ("other%1", "\u65e5\u672c \U0001f600"),
    )
)
CLIENTS = 3
READERS = 2


#: What is counted; the first ones must come by in a run.
CASES = (
    "a write that was not answered stood",
    "a late write stood",
    "a reader met another epoch",
    "tombstones were dropped",
    "a late write came too late",
    "a reader was truncated",
    "data that were put back were noticed",
)


class Fate(enum.Enum):
    """What becomes of a script on its way."""

    REPLY_LOST = "carried out, not answered"
    REQUEST_LOST = "neither"
    LATE = "carried out long after its sender gave up"


class FatefulConnection(connection.Connection):
    """Loses a write, its reply, or lets it arrive late, where it is told to."""

    def __init__(self, settings: redis.RedisOptions) -> None:
        super().__init__(settings)
        #: Of the next writes, in their order.
        self.fates: list[Fate | None] = []
        self.carry: Callable[[Fate | None, tuple[Any, ...]], bool] = lambda fate, sent: False

    def run(self, script: Any, *arguments: Any, **named: Any) -> Any:
        fate = self.fates.pop(0) if script is scripts.WRITE and self.fates else None
        if fate in (Fate.REQUEST_LOST, Fate.LATE):
            self.carry(fate, (script, *arguments))
            raise connection.ReplyLost(fate.value)
        answer = super().run(script, *arguments, **named)
        if script is scripts.WRITE and answer[0] == b"EPOCH":
            # It is sent again in the epoch in force.
            self.fates.insert(0, fate)
        elif fate is Fate.REPLY_LOST:
            self.carry(fate, (script, *arguments))
            raise connection.ReplyLost(fate.value)
        return answer


class Client(redis.RedisSynchronizer):
    WRITES_PER_BATCH = 3
    READS_PER_BATCH = 4

    def __init__(self, settings: redis.RedisOptions) -> None:
        super().__init__(settings)
        self.wire = FatefulConnection(settings)
        self._connection = self._epochs._connection = self.wire

    def seen(self, epoch: str) -> int:
        """Return the highest version of an epoch that it has seen."""
        name, version = self._epochs.version_seen()
        return version if name == epoch else 0


@attrs.define
class Model:
    """What the server must hold.

    :param held: by key (version, payload), None for a tombstone
    """

    epoch: layout.Epoch
    version: int = 0
    floor: int = 0
    held: dict[records.RecordKey, tuple[int, bytes | None]] = attrs.field(factory=dict)

    def copy(self) -> Model:
        return attrs.evolve(self, held=dict(self.held))

    def record(self, key: records.RecordKey) -> records.Record | None:
        if key not in self.held:
            return None
        version, payload = self.held[key]
        revision = self.epoch.revision_base + version
        return records.Record(key, revision, version, payload or b"", deleted=payload is None)

    def after(self, version: int) -> list[records.Record]:
        found = [self.record(key) for key in self.held]
        behind = [each for each in found if each is not None and each.version > version]
        return sorted(behind, key=lambda each: each.version)

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return [self._write(each) for each in writes]

    def _write(self, write: records.Write) -> records.WriteResult:
        standing = self.record(write.key)
        alive = standing is not None and not standing.deleted
        matches = standing is not None and standing.revision == write.expected_revision
        if not (matches or (write.expected_revision == 0 and not alive)):
            return records.WriteResult(Verdict.LOST, standing)
        self.version += 1
        self.held[write.key] = (self.version, None if write.deleted else write.payload)
        return records.WriteResult(Verdict.WON, self.record(write.key), self.epoch.name)


class Reader:
    """Follows as replicas do, one exchange at a time; refuses what goes backward."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cursor: records.Cursor | None = None
        self.pages: Iterator[Sequence[records.Record]] | None = None
        self.held: dict[records.RecordKey, records.Record] = {}

    def begin(self) -> None:
        taken = self.client.snapshot()
        self.cursor, self.pages, self.held = taken.cursor, taken.pages, {}

    def page(self) -> None:
        assert self.pages is not None
        try:
            page = next(self.pages)
        except StopIteration:
            self.pages = None
        except contract.SnapshotInterrupted:
            self.begin()
        else:
            for record in page:
                assert not record.deleted, record
                self.take(record)

    def take(self, record: records.Record) -> None:
        known = self.held.get(record.key)
        assert known is None or known.revision <= record.revision, (known, record)
        assert known is None or known.revision < record.revision or known == record
        self.held[record.key] = record

    def live(self) -> dict[records.RecordKey, records.Record]:
        return {key: each for key, each in self.held.items() if not each.deleted}


_numbers = itertools.count()


class Machine(stateful.RuleBasedStateMachine):
    """A few clients and readers of one prefix, and everything that may happen to them."""

    case: redis_case.RedisCase
    #: How often each of CASES came by.
    seen: dict[str, int]

    @stateful.initialize()
    def begin(self) -> None:
        self.prefix = f"machine-{next(_numbers)}"
        self.raw = self.case.server.client()
        self.clients = [self._opened() for _ in range(CLIENTS)]
        self.readers = [Reader(self._opened()) for _ in range(READERS)]
        self.model = Model(self._epoch_of(self.clients[0]))
        self.late: list[tuple[tuple[Any, ...], list[records.Write]]] = []
        self.former: list[int] = [1, 2**62, 2**53 + 1]
        self.kept: tuple[dict[bytes, bytes], Model] | None = None
        self.meanwhile: list[Callable[[], None]] = []
        self.payloads = itertools.count()
        self.sent: list[records.Write] = []
        for reader in self.readers:
            reader.begin()

    def _opened(self) -> Client:
        settings = redis.RedisOptions(url=self.case.redis.url, key_prefix=self.prefix)
        client = Client(settings)
        client.open()
        return client

    @staticmethod
    def _epoch_of(client: Client) -> layout.Epoch:
        epoch = layout.Epoch.parse(client.head().epoch)
        assert epoch is not None
        return epoch

    # --- writers ---

    @stateful.rule(
        number=st.integers(0, CLIENTS - 1),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True),
        guesses=st.lists(
            st.sampled_from(("right", "right", "none", "former")), min_size=5, max_size=5
        ),
        deletions=st.lists(st.sampled_from((False, False, True)), min_size=5, max_size=5),
        length=st.sampled_from((0, 1, 30)),
        fates=st.lists(st.sampled_from((None, None, *Fate)), max_size=2),
    )
    def write(
        self,
        number: int,
        keys: list[records.RecordKey],
        guesses: list[str],
        deletions: list[bool],
        length: int,
        fates: list[Fate | None],
    ) -> None:
        writes = []
        for key, guess, deleted in zip(keys, guesses, deletions, strict=False):
            standing = self.model.record(key)
            expected = {
                "right": standing.revision if standing else 0,
                "none": 0,
                "former": self.former[next(self.payloads) % len(self.former)],
            }[guess]
            payload = b"" if deleted or not length else b"%d" % next(self.payloads) + bytes(length)
            writes.append(records.Write(key, expected, payload, deleted=deleted))
        self._write(self.clients[number], writes, fates)

    def _write(
        self, client: Client, writes: list[records.Write], fates: Sequence[Fate | None]
    ) -> None:
        parts = [writes[at : at + 3] for at in range(0, len(writes), 3)]
        expected: list[records.WriteResult] = []
        pending = iter(parts)

        def carry(fate: Fate | None, sent: tuple[Any, ...]) -> bool:
            part = next(pending)
            if fate is Fate.LATE:
                self.late.append((sent, part))
            elif fate is Fate.REPLY_LOST:
                self._count("a write that was not answered stood", self.model.write(part))
            return True

        client.wire.fates, client.wire.carry = list(fates), carry
        client.on_step = self._interject
        plan = list(fates)[: len(parts)]
        failed = next((place for place, fate in enumerate(plan) if fate is not None), len(parts))
        counted: list[int] = []
        original = client._write_batch

        def batch(part: Sequence[records.Write]) -> list[records.WriteResult]:
            results = original(part)
            next(pending)
            counted.append(len(part))
            assert results == self.model.write(part), (results, part)
            return results

        with mock.patch.object(client, "_write_batch", batch):
            results = client.write(writes)
        client.wire.fates, client.on_step = [], lambda step: None
        won = sum(counted)
        assert len(counted) == failed, (counted, plan)
        expected = [records.WriteResult(Verdict.UNKNOWN)] * (len(writes) - won)
        assert results[won:] == expected, results
        self.former += [each.record.revision for each in results if each.won and each.record]

    def _count(self, case: str, results: list[records.WriteResult]) -> None:
        self.seen[case] += any(result.won for result in results)

    def _interject(self, step: str) -> None:
        if step == redis.Step.COMMIT.value and self.meanwhile:
            self.meanwhile.pop()()

    @stateful.rule(
        number=st.integers(0, CLIENTS - 1), key=st.sampled_from(KEYS), deleted=st.booleans()
    )
    def somebody_writes_before_the_next_write(
        self, number: int, key: records.RecordKey, deleted: bool
    ) -> None:
        def act() -> None:
            standing = self.model.record(key)
            other = self._opened()
            write = records.Write(
                key, standing.revision if standing else 0, b"meanwhile", deleted=deleted
            )
            assert other.write([write]) == self.model.write([write])
            other.close()

        self.meanwhile.append(act)

    @stateful.rule(odds=st.integers(0, 4))
    def an_epoch_ends_before_the_next_write(self, odds: int) -> None:
        if not odds:
            self.meanwhile.append(lambda: self.operator_begins_anew(0, 0))

    @stateful.rule()
    def late_requests_arrive(self) -> None:
        late, self.late = self.late, []
        for sent, part in late:
            answer = self.clients[0].wire.run(*sent)
            if sent[2] == self.model.epoch.name:
                self._count("a late write stood", self.model.write(part))
            else:
                self.seen["a late write came too late"] += 1
                assert answer[0] == b"EPOCH", answer

    @stateful.rule(number=st.integers(0, CLIENTS - 1))
    def read(self, number: int) -> None:
        found = self.clients[number].read(KEYS)
        assert dict(found) == {key: self.model.record(key) for key in self.model.held}, found

    @stateful.rule(number=st.integers(0, CLIENTS - 1))
    def collect(self, number: int) -> None:
        dead = {key: each for key, each in self.model.held.items() if each[1] is None}
        done = self.clients[number].collect(0.0)
        assert done.tombstones == min(len(dead), 2)
        left = self.clients[number].read(tuple(dead))
        for key in dead.keys() - left.keys():
            self.model.floor = max(self.model.floor, self.model.held.pop(key)[0])
        assert len(dead) - len(left) == done.tombstones
        assert done.floor == self.model.floor
        self.seen["tombstones were dropped"] += done.tombstones

    # --- readers ---

    @stateful.rule(number=st.integers(0, READERS - 1), limit=st.sampled_from((1, 2, 1000)))
    def follow(self, number: int, limit: int) -> None:
        self._follow(self.readers[number], limit)

    def _follow(self, reader: Reader, limit: int) -> None:
        if reader.pages is not None:
            reader.page()
            return
        cursor, model = reader.cursor, self.model
        assert cursor is not None
        fetched = reader.client.fetch(cursor, limit)
        if isinstance(fetched, records.ResyncNeeded):
            if fetched.reason is records.ResyncReason.HISTORY_TRUNCATED:
                assert cursor.version < model.floor, (cursor, model)
                self.seen["a reader was truncated"] += 1
            else:
                assert fetched.reason is records.ResyncReason.EPOCH_CHANGED, fetched
                assert cursor.epoch != model.epoch.name, (cursor, model)
                self.seen["a reader met another epoch"] += 1
            reader.begin()
            return
        assert cursor.epoch == model.epoch.name, (cursor, model)
        assert cursor.version >= model.floor, (cursor, model)
        expected = model.after(cursor.version)
        given = list(fetched.records)
        assert given == expected[: len(given)], (given, expected)
        assert len(given) <= limit
        assert fetched.more == (len(given) < len(expected))
        assert fetched.cursor.version == (given[-1].version if fetched.more else model.version)
        for record in given:
            reader.take(record)
        reader.cursor = fetched.cursor

    @stateful.rule(number=st.integers(0, READERS - 1))
    def read_again(self, number: int) -> None:
        self.readers[number].begin()

    @stateful.rule(
        number=st.integers(0, CLIENTS - 1),
        wanted=st.sets(st.sampled_from(("suite", "other%1", "x"))),
    )
    def snapshot_of_some_namespaces(self, number: int, wanted: set[str]) -> None:
        pages = self.clients[number].snapshot(wanted).pages
        found = {record.key: record for page in pages for record in page}
        expected = {
            record.key: record
            for record in self.model.after(0)
            if not record.deleted and record.key.namespace in wanted
        }
        assert found == expected, (found, expected)

    # --- accidents ---

    @stateful.rule(
        odds=st.integers(0, 4), part=st.sampled_from(("meta", "records", "order", "graves", "all"))
    )
    def keys_are_lost(self, odds: int, part: str) -> None:
        name = f"{{{self.prefix}}}:{part}"
        if odds or (part != "all" and not self.raw.exists(name)):
            return
        self.raw.delete(*(self._keys() if part == "all" else [name]))
        self._ended()

    @stateful.rule(odds=st.integers(0, 4), number=st.integers(0, CLIENTS - 1))
    def operator_begins_anew(self, odds: int, number: int) -> None:
        if not odds:
            self.clients[number].reset()
            self._ended()

    @stateful.rule()
    def the_stream_of_wake_ups_is_lost(self) -> None:
        self.raw.delete(f"{{{self.prefix}}}:wake")

    @stateful.rule()
    def scripts_are_flushed(self) -> None:
        self.raw.script_flush()

    @stateful.rule()
    def connections_break(self) -> None:
        self.raw.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.005)  # until all have heard

    @stateful.rule()
    def the_server_is_copied(self) -> None:
        self.kept = ({key: self.raw.dump(key) for key in self._keys()}, self.model.copy())

    @stateful.rule()
    def the_copy_is_put_back(self) -> None:
        if self.kept is None:
            return
        dumps, model = self.kept
        transaction = self.raw.pipeline(transaction=True)
        transaction.delete(*(self._keys() or [b"nothing"]))
        for key, value in dumps.items():
            transaction.restore(key, 0, value)
        transaction.execute()
        everybody = [*self.clients, *(reader.client for reader in self.readers)]
        wisest = max(everybody, key=lambda each: each.seen(model.epoch.name))
        ends = wisest.seen(model.epoch.name) > model.version
        self.model = model.copy()
        if ends:
            self.seen["data that were put back were noticed"] += 1
            self._ended(wisest)

    def _keys(self) -> list[bytes]:
        found: list[bytes] = self.raw.keys(f"{{{self.prefix}}}:*")
        return found

    def _ended(self, client: Client | None = None) -> None:
        """An epoch ended; the next client to look finds or begins another, later one."""
        former = self.model.epoch
        self.model = Model(self._epoch_of(client or self.clients[-1]))
        assert (self.model.epoch.began, self.model.epoch.name) > (former.began, former.name)
        assert self.model.epoch.name != former.name
        self.kept = None

    # --- at quiet ---

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            self.meanwhile.clear()
            self.late_requests_arrive()
            live = {each.key: each for each in self.model.after(0) if not each.deleted}
            for reader in self.readers:
                head = reader.client.head()
                assert head == records.Cursor(self.model.epoch.name, self.model.version)
                for _ in range(200):
                    if reader.pages is None and reader.cursor == head:
                        break
                    self._follow(reader, 1000)
                assert reader.live() == live, (reader.live(), live)
        finally:
            for client in (*self.clients, *(reader.client for reader in self.readers)):
                client.close()
            keys = self._keys()
            if keys:
                self.raw.delete(*keys)
            self.raw.close()


class TestInterleavings(redis_case.RedisCase):
    def test_a_server_of_any_history_equals_a_dict_of_records(self) -> None:
        self._run(driver.BYTES_PER_REPLY)

    def test_replies_that_hold_hardly_a_record_change_nothing(self) -> None:
        self._run(20)

    def _run(self, bytes_per_reply: int) -> None:
        seen = dict.fromkeys(CASES, 0)
        machine: Any = type("Machine", (Machine,), {"case": self, "seen": seen})
        sizes = {"RECORDS_PER_PAGE": 2, "NAMES_PER_PAGE": 3, "COLLECTION_LIMIT": 2}
        with mock.patch.multiple(driver, BYTES_PER_REPLY=bytes_per_reply, **sizes):
            machine_runs.run(
                machine,
                seen,
                CASES[:4],
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
            )
