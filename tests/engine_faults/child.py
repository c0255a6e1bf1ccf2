# SPDX-License-Identifier: Apache-2.0
"""A scheduler's process: places, deletes and publishes at random, as the parent commands."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import logging
import os
import random
import signal
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import connection as mp_connection
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import placing
from nova_nodb_scheduler.simulator.scenario import backend_choice
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection, layout
from nova_nodb_scheduler.synchronizer.drivers.support import record_names
from nova_nodb_scheduler.wire import codec
from tests.engine_faults import scheduler, steps, truth, witnesses

_PR_SET_PDEATHSIG = 1

#: What says how others are alive, not what is scheduled by.
BEATS = frozenset({known_namespaces.SCHEDULERS.name, known_namespaces.LEASES.name})


@attrs.frozen
class Options:
    """What a scheduler's process is given at its start.

    :param most_owned: servers of its own beyond which it rather deletes
    :param claims: False: it takes no claims, so that its ledger breaks
    """

    identity: str
    backend: backend_choice.BackendChoice
    policies: dict[str, str]
    seed: int
    pause_seconds: float
    most_owned: int
    claims: bool = True


def digest(payload: bytes) -> str:
    """Return what a payload is compared by."""
    return hashlib.sha1(payload, usedforsecurity=False).hexdigest()


def run(
    options: Options, commands: mp_connection.Connection, questions: mp_connection.Connection
) -> None:
    """Live until told to stop, or until the parent is gone."""
    # A process that stands still notices no closed pipe.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("nova_nodb_scheduler").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _Child(options, commands, questions).live()
    # Threads may hang in a server that does not answer; nothing is left to be done.
    os._exit(0)


class _Child:
    def __init__(
        self,
        options: Options,
        commands: mp_connection.Connection,
        questions: mp_connection.Connection,
    ) -> None:
        self._options = options
        self._commands, self._questions = commands, questions
        self._question_lock = threading.Lock()
        self._rng = random.Random(f"{options.seed} {options.identity}")
        self._steps = steps.Steps(
            lambda step: self._tell("reached", step), lambda step: self._call("stop at", step)
        )
        self._client = options.backend.make()
        self._scheduler = scheduler.Scheduler(
            options.identity, self._client, self._call, self._steps, self._rng
        )
        if not options.claims:
            self._scheduler.claim_nothing()
        self._reporter = truth.Reporter(self._client, lambda keys: self._call("rows", keys))
        self._working = threading.Event()
        self._resting = threading.Event()
        self._stopped = threading.Event()
        #: What the next operations are, in place of random ones.
        self._provoke: Callable[[], object] | None = None
        self._numbers = itertools.count()
        self._owned: list[str] = []
        self._decisions = 0
        self._decided_at = 0.0
        self._failure = ""

    # -- talking to the parent ----------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._question_lock:
            self._questions.send((name, *arguments))
            return self._questions.recv()

    def _tell(self, name: str, *arguments: Any) -> None:
        # Without the lock: a thread that waits for an answer holds it.
        self._commands.send(("told", name, *arguments))

    def _obey(self) -> None:
        while not self._stopped.is_set():
            try:
                number, name, *arguments = self._commands.recv()
            except (EOFError, OSError):
                os._exit(0)
            try:
                answer = getattr(self, f"do_{name}")(*arguments)
            except Exception:
                answer = traceback.format_exc()
            self._commands.send((number, answer))

    # -- commands -----------------------------------------------------------------------

    def do_work(self) -> None:
        self._working.set()

    def do_rest(self) -> None:
        self._working.clear()

    def do_is_resting(self) -> bool:
        return self._resting.is_set()

    def do_arm(self, layer: str, step: str, action: str, provocation: str) -> None:
        self._provoke = getattr(self, f"_{provocation}") if provocation else None
        self._steps.arm(layer, step, steps.Action(action))

    def do_disarm(self) -> None:
        self._steps.disarm()
        self._provoke = None

    def do_provoke(self, provocation: str) -> None:
        self._provoke = getattr(self, f"_{provocation}") if provocation else None

    def do_status(self) -> dict[str, Any]:
        status = self._scheduler.replicator.status()
        return {
            "state": status.state.value,
            "alive": self._scheduler.replicator.alive(scheduler.SILENCE_SECONDS),
            "thread": status.thread_alive,
            "decisions": self._decisions,
            "decided_at": self._decided_at,
            "resyncs": sum(status.resyncs.values()),
            "reasons": dict(status.resyncs),
            "epoch": status.epoch,
            "detail": status.detail,
            "failure": self._failure,
            # What a sweep repaired: the feed owed it, and nobody else would know.
            "swept": {name: count for name, count in status.anti_entropy.items() if count},
        }

    def do_digests(self) -> dict[tuple[str, str], str]:
        snapshot = self._scheduler.store.snapshot()
        found = {}
        for name in snapshot.namespaces():
            if name in BEATS:
                continue
            view = snapshot.namespace(name)
            for key in view.keys():  # noqa: SIM118 - a view is no mapping
                stored = view.get(key)
                if stored is not None:
                    found[name, key] = digest(stored.payload)
        return found

    def do_stop(self) -> None:
        self._stopped.set()
        self._working.set()

    # -- living -------------------------------------------------------------------------

    def live(self) -> None:
        threading.Thread(target=self._obey, name="commands", daemon=True).start()
        self._scheduler.start()
        while not self._stopped.is_set():
            if not self._working.is_set():
                self._resting.set()
                self._working.wait(0.05)
                continue
            self._resting.clear()
            try:
                (self._provoke or self._operate)()
            except errors.NodbError:
                time.sleep(0.05)
            except (placing.ClaimsUnavailable, contract.SnapshotInterrupted):
                time.sleep(0.05)
            except (EOFError, OSError):
                raise
            except Exception:
                self._failure = traceback.format_exc()
                time.sleep(0.2)
            time.sleep(self._options.pause_seconds * self._rng.random())
        self._scheduler.stop()

    def _operate(self) -> None:
        drawn = self._rng.random()
        # Full hosts are where schedulers meet; but what refuses all shows nothing.
        place = 0.55 if len(self._owned) < self._options.most_owned else 0.2
        if drawn < place:
            self._place()
        elif drawn < 0.85:
            self._delete()
        elif drawn < 0.92:
            self._publish()
        elif drawn < 0.96:
            self._mark()
        else:
            self._phoenix()

    def _place(self, grouped: float = 0.4, count: int = 0) -> None:
        servers = [
            f"{self._options.identity}/{next(self._numbers)}"
            for _ in range(count or self._rng.choice((1, 1, 1, 2)))
        ]
        group = self._group(servers) if self._rng.random() < grouped else None
        vcpus = self._rng.choice((1, 1, 2))
        try:
            placed = self._scheduler.place(servers, vcpus, group)
        except placing.ClaimsUnavailable:
            self._call("refuse", servers)
            raise
        self._decisions += 1
        self._decided_at = time.monotonic()
        if placed is None:
            self._call("refuse", servers)
            return
        self._call("grant", placed)
        self._owned += servers
        hosts = sorted({host for _, host, _ in placed})
        self._reporter.publish(
            [
                *(records.RecordKey(known_namespaces.PROVIDERS.name, host) for host in hosts),
                *map(truth.instance_key, servers),
            ]
        )

    def _group(self, servers: Sequence[str]) -> requests.Group:
        uuid = self._rng.choice(sorted(self._options.policies))
        policy = self._options.policies[uuid]
        members = self._call("join", uuid, servers)
        return requests.Group(uuid, policy, frozenset([policy]), frozenset(members))

    def _delete(self) -> None:
        if not self._owned:
            return
        server = self._owned.pop(self._rng.randrange(len(self._owned)))
        host = self._call("host_of", server)
        self._call("delete", [server])
        keys = [truth.instance_key(server)]
        if host is not None:
            keys.append(records.RecordKey(known_namespaces.PROVIDERS.name, host))
        self._reporter.publish(keys)

    def _publish(self) -> None:
        self._reporter.publish(truth.host_keys(self._rng.choice(sorted(truth.MADE))))

    def _mark(self) -> None:
        """Create a record that nobody ever touches again."""
        epoch = self._client.head().epoch
        key = witnesses.key_of(
            self._options.identity, next(self._numbers), known_namespaces.CELLS.name
        )
        state = codec.encode({}, known_namespaces.CELLS.schema, record=str(key))
        [result] = self._client.write([records.Write(key, 0, state)])
        if result.won and self._client.head().epoch == epoch:
            self._call("marked", epoch, (key.namespace, key.key))

    def _remark(self) -> None:
        """Create a record, and write it again once readers have it."""
        key = witnesses.key_of(
            self._options.identity, next(self._numbers), known_namespaces.CELLS.name
        )
        revision = 0
        for turn in range(2):
            state = codec.encode({"n": turn}, known_namespaces.CELLS.schema, record=str(key))
            [result] = self._client.write([records.Write(key, revision, state)])
            if not result.won or result.record is None:
                return
            revision = result.record.revision
            time.sleep(0.3)

    # -- what makes rare steps be reached -------------------------------------------------

    def _phoenix(self) -> None:
        """Create a record, or delete it: it lives, dies, and lives again."""
        name = self._options.identity.rpartition("-")[0]
        key = records.RecordKey(known_namespaces.CELLS.name, f"phoenix-{name}")
        standing = self._client.read([key]).get(key)
        if standing is None or standing.deleted:
            state = codec.encode({}, known_namespaces.CELLS.schema, record=str(key))
            self._client.write([records.Write(key, 0, state)])
        else:
            self._client.write([records.Write(key, standing.revision, deleted=True)])

    def _grouped(self) -> None:
        """Place members of groups, and make room for them."""
        if len(self._owned) > self._options.most_owned // 2:
            self._delete()
        self._place(grouped=1.0)

    def _crowded(self) -> None:
        """Ask for more servers at once than there is room for: what was claimed goes back."""
        self._delete()
        self._place(grouped=0.0, count=8)

    def _novelty(self) -> None:
        """Create a record that never was, and delete it."""
        name = f"novelty-{self._options.identity}-{next(self._numbers)}"
        key = records.RecordKey(known_namespaces.CELLS.name, name)
        state = codec.encode({}, known_namespaces.CELLS.schema, record=str(key))
        [result] = self._client.write([records.Write(key, 0, state)])
        if result.record is not None:
            self._client.write([records.Write(key, result.record.revision, deleted=True)])

    def _collect(self) -> None:
        """Leave a tombstone, and collect."""
        for _ in range(2):
            self._phoenix()
        time.sleep(0.01)
        self._client.collect(0.0)

    def _reset(self) -> None:
        """Begin a new epoch, as an operator does."""
        self._client.reset()
        self._client.head()
        time.sleep(0.2)

    def _half_begun(self) -> None:
        """Leave what who dies as a memcached's next epoch begins leaves, and collect."""
        epochs = self._client._epochs
        base = epochs.current().revision_base + 1_000_000
        epochs._leftovers.enter(layout.Epoch(epochs._prefix, str(uuid.uuid4()), base))
        self._client.collect(0.0)

    def _bury(self) -> None:
        """Leave a tombstone, and collect those that are old enough by now."""
        self._novelty()
        self._client.collect(0.0)

    def _contest(self) -> None:
        """Write one record twice at the same time."""
        key = records.RecordKey(known_namespaces.CELLS.name, f"contest-{self._options.identity}")
        standing = self._client.read([key]).get(key)
        state = codec.encode({}, known_namespaces.CELLS.schema, record=str(key))
        write = records.Write(key, standing.revision if standing else 0, state)

        def compete() -> None:
            with contextlib.suppress(errors.NodbError):
                self._client.write([write])

        other = threading.Thread(target=compete, daemon=True)
        other.start()
        compete()
        other.join()

    def _unused_version(self) -> None:
        """Take a version of a memcached's and no slot, as a writer that dies, and read on."""
        self._leave_behind(lambda epoch, version: None)

    def _unused_slot(self) -> None:
        """Take a slot of a memcached's for a record, and do not write that."""
        name = record_names.encode(truth.host_keys(sorted(truth.MADE)[0])[0])
        self._leave_behind(
            lambda epoch, version: self._client._connection.send(
                [connection.store(b"add", epoch.slot_key(version), name, ttl_seconds=3600)]
            )
        )

    def _leave_behind(self, take: Callable[[Any, int], object]) -> None:
        driver = self._client
        head = driver.head()
        epoch = driver._epochs.current()
        version = driver._connection.increment(epoch.sequence_key, 1)
        if version is None or epoch.name != head.epoch:
            return
        take(epoch, version)
        deadline = time.monotonic() + 2.0
        while head.version < version and time.monotonic() < deadline:
            fetched = driver.fetch(head)
            if isinstance(fetched, records.ResyncNeeded):
                return
            head = fetched.cursor
            time.sleep(0.02)

    def _flushed(self) -> None:
        """Lose all that a memcached holds, and be among the first to notice."""
        self._client._connection.send([b"flush_all\r\n"])
        self._client.head()
        time.sleep(0.2)

    def _batch(self) -> None:
        """Write more records than one statement of MariaDB's carries."""
        keys = [
            records.RecordKey(
                known_namespaces.CELLS.name, f"batch-{self._options.identity}-{number}"
            )
            for number in range(40)
        ]
        found = self._client.read(keys)
        state = codec.encode(
            {"n": next(self._numbers)}, known_namespaces.CELLS.schema, record="batch"
        )
        revisions = [found[key].revision if key in found else 0 for key in keys]
        self._client.write(
            [records.Write(*each, state) for each in zip(keys, revisions, strict=True)]
        )

    def _lost_sequence(self) -> None:
        """Lose the row of a SQL back end that says its epoch, and look."""
        engine, _readers = self._client.engines
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM nodb_sequence")
        self._client.head()
        time.sleep(0.2)

    def _burst(self) -> None:
        """Write as fast as can be."""
        for _ in range(10):
            self._phoenix()
