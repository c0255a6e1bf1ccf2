# SPDX-License-Identifier: Apache-2.0
"""Any history of a store against plain dictionaries, snapshots held throughout."""

import copy
import functools
import math
import os
import uuid

import attrs
import fixtures
import numpy as np
import testtools
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from tests.unit.store import store_samples

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "75"))

UUIDS = [str(uuid.UUID(bytes=bytes(16 * [byte]))) for byte in (0, 1, 17, 170)]
#: As keys of servers are, in cells one more than have a code.
IN_CELLS = [f"{UUIDS[at]}@c{cell}" for at, cell in ((0, 1), (1, 1), (1, 2), (2, 2), (3, 3), (3, 4))]
#: Texts that a uuid's parser takes, and that are not what its own text would be.
ODD = [
    "k0",
    "k1",
    "Ä" * 36,
    UUIDS[3].upper(),
    UUIDS[2].replace("-", ""),
    UUIDS[1].replace("-", "0"),
]
ODD += [f"{{{UUIDS[2]}}}", f"{UUIDS[2].upper()}@c1"]
KEYS = st.sampled_from([*UUIDS, *IN_CELLS, *ODD])
BACKENDS = ["lvm", "ceph", "nfs", None]
ZONES = [1, 2, None]
TAGS = st.lists(st.integers(0, 140).map("t{}".format), max_size=5)

#: At each bound of a column's width, and anywhere.
BOUNDS = [sign * 2**bits + by for bits in (7, 15, 31) for sign in (-1, 1) for by in (-1, 0, 1)]
NUMBERS = st.sampled_from([*BOUNDS, -(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)

STATES = st.fixed_dictionaries(
    {},
    optional={
        "pool": st.fixed_dictionaries({"free_gb": NUMBERS | st.none()}),
        "ratio": st.floats() | st.none(),
        "thin": st.booleans() | st.none(),
        "backend": st.sampled_from(BACKENDS),
        "zone": st.sampled_from(ZONES),
        "tags": TAGS | st.none(),
    },
)
BAD_FIELDS = st.sampled_from(
    [{"pool": {"free_gb": 2**63}}, {"ratio": []}, {"thin": "x"}, {"tags": [1]}, {"zone": {}}]
)


class Model:
    """What a store should hold, without chunks, rows or maps."""

    def __init__(self):
        self.epoch = 0
        self.live = {}  # key -> (revision, version, state)
        self.tombstones = {}  # key -> (revision, version)

    def known(self, key):
        return self.live.get(key, self.tombstones.get(key, (0,)))[0]


def expected_row(state):
    def at(path, default):
        value = namespaces.value_at(state, path)
        return default if value is None else value

    return (
        at(("pool", "free_gb"), 0),
        float(at(("ratio",), 1.5)).hex(),
        at(("thin",), False),
        at(("backend",), ""),
        frozenset(at(("tags",), ())),
    )


def actual_rows(view):
    backends, tags = view.vocabulary("backend"), view.vocabulary("tags")
    columns = (
        view.column("free_gb").tolist(),
        [value.hex() for value in view.column("ratio").tolist()],
        view.column("thin").tolist(),
        [backends.text(code) for code in view.column("backend").tolist()],
        [
            frozenset(
                tags.text(code)
                for code in range(64 * len(words))
                if words[code // 64] >> (code % 64) & 1
            )
            for words in view.column("tags").tolist()
        ],
    )
    return dict(zip(view.row_keys(), zip(*columns, strict=True), strict=True))


def check(view, model):
    live = model.live
    assert len(view) == len(live)
    assert sorted(view.keys()) == sorted(view.row_keys()) == sorted(live)
    assert actual_rows(view) == {key: expected_row(state) for key, (_, _, state) in live.items()}
    for key, (revision, version, state) in live.items():
        stored = view.get(key)
        assert key in view
        assert (stored.key, stored.revision, stored.version) == (key, revision, version)
        assert stored.payload == store_samples.change(key, revision, carried(state)).record.payload
    for backend in BACKENDS[:-1]:
        with_backend = [key for key in live if live[key][2].get("backend") == backend]
        assert view.lookup("backend", backend) == tuple(sorted(with_backend))
        for zone in ZONES[:-1]:
            with_zone = [key for key in with_backend if live[key][2].get("zone") == zone]
            assert view.lookup("backend_zone", backend, str(zone)) == tuple(sorted(with_zone))


def carried(state):
    """The state with what JSON lacks left out, for a payload of its own."""
    ratio = state.get("ratio")
    if ratio is not None and not math.isfinite(ratio):
        return {**state, "ratio": None}
    return state


class Histories(stateful.RuleBasedStateMachine):
    declared = store_samples.POOLS

    def __init__(self):
        super().__init__()
        self.store = store_samples.store(self.declared)
        self.model = Model()
        self.version = 0
        self.held = []  # (view, model then, bytes of the columns then or None)

    def view(self):
        return self.store.snapshot().namespace("pools")

    def change(self, key, step, state):
        self.version += 1
        revision = max(1, self.model.known(key) + step)
        change = store_samples.change(
            key, revision, None if state is None else carried(state), version=self.version
        )
        return records.Change(change.record, state)

    def expect(self, change):
        """Tell the model, and return whether the store should call the change newer."""
        record, key = change.record, change.record.key.key
        if record.revision <= self.model.known(key):
            return False
        self.model.live.pop(key, None)
        self.model.tombstones.pop(key, None)
        if record.deleted:
            self.model.tombstones[key] = (record.revision, record.version)
        else:
            self.model.live[key] = (record.revision, record.version, change.state)
        return True

    @stateful.rule(key=KEYS, step=st.integers(-2, 3), state=STATES | st.none())
    def apply(self, key, step, state):
        change = self.change(key, step, state)
        assert self.store.apply(change) is self.expect(change)
        assert self.store.apply(change) is False

    @stateful.rule(
        many=st.lists(st.tuples(KEYS, st.integers(0, 2), STATES | st.none()), max_size=12)
    )
    def apply_page(self, many):
        changes, newer = [], 0
        for each in many:
            changes.append(self.change(*each))
            newer += self.expect(changes[-1])
        assert self.store.apply_page(changes).count(True) == newer

    @stateful.rule(key=KEYS, step=st.integers(1, 3), state=STATES, bad=BAD_FIELDS)
    def apply_refused(self, key, step, state, bad):
        change = records.Change(self.change(key, step, state).record, {**state, **bad})
        before = self.store.snapshot()
        try:
            self.store.apply(change)
        except errors.InvalidRecord:
            assert self.store.snapshot() is before
        else:
            raise AssertionError(f"{bad} was taken")

    @stateful.rule(keys=st.sets(KEYS), age=st.integers(0, 10))
    def retain(self, keys, age):
        version = self.version - age
        live = self.model.live
        doomed = [key for key in live if key not in keys and live[key][1] <= version]
        assert self.store.retain("pools", keys, version) == len(doomed)
        for key in doomed:
            del live[key]

    @stateful.rule(age=st.integers(0, 10))
    def forget_tombstones(self, age):
        floor = self.version - age
        tombstones = self.model.tombstones
        old = [key for key in tombstones if tombstones[key][1] < floor]
        assert self.store.forget_tombstones(floor) == len(old)
        for key in old:
            del tombstones[key]

    @stateful.rule()
    def begin_epoch(self):
        self.store.begin_epoch()
        self.model = Model()
        self.model.epoch = self.version = self.version + 1

    @stateful.rule(read_at_once=st.booleans())
    def hold(self, read_at_once):
        view = self.view()
        columns = None
        if read_at_once:
            columns = {
                column.name: view.column(column.name).tobytes()
                for column in store_samples.POOLS.columns
            }
        self.held.append((view, copy.deepcopy(self.model), columns))

    @stateful.rule(data=st.data())
    @stateful.precondition(lambda self: self.held)
    def compare_with_a_held_one(self, data):
        older, model, _ = data.draw(st.sampled_from(self.held))
        mine, its = self.model.live, model.live
        changed = {
            key
            for key in {*mine, *its}
            if model.epoch != self.model.epoch or mine.get(key, (0,))[0] != its.get(key, (0,))[0]
        }
        assert self.view().changed_since(older) == changed
        assert older.changed_since(self.view()) == changed

    @stateful.invariant()
    def present_is_as_modelled(self):
        check(self.view(), self.model)
        assert self.store.tombstone_count == len(self.model.tombstones)

    def teardown(self):
        for view, model, columns in self.held:
            for name, content in (columns or {}).items():
                assert view.column(name).tobytes() == content
                assert not view.column(name).flags.writeable
                # Gathered again from the chunks, not from what the view kept.
                position = [column.name for column in store_samples.POOLS.columns].index(name)
                assert np.array_equal(
                    view._gather(position).view(np.uint8), view.column(name).view(np.uint8)
                )
            check(view, model)


class HistoriesOfUuids(Histories):
    declared = attrs.evolve(store_samples.POOLS, uuid_keys=True)


class TestHistories(testtools.TestCase):
    def test_any_history_gives_what_dictionaries_give_and_held_snapshots_stay(self):
        self.run_histories(Histories)

    def test_keys_that_are_kept_packed_are_to_callers_as_if_they_were_not(self):
        # Few buckets: bytes of neighbours look like keys. Few codes: some cells have none.
        for name, few in (("_BUCKETS", 2), ("_MOST_SUFFIXES", 4)):
            self.useFixture(fixtures.MonkeyPatch(f"nova_nodb_scheduler.store.key_rows.{name}", few))
        self.run_histories(HistoriesOfUuids)

    def run_histories(self, machine):
        # Small chunks: the keys then fill and empty several of them.
        self.useFixture(
            fixtures.MonkeyPatch("nova_nodb_scheduler.store.record_chunks.CHUNK_ROWS", 4)
        )
        run = functools.partial(stateful.run_state_machine_as_test, machine)
        run(
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
        )
