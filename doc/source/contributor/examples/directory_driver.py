# SPDX-License-Identifier: Apache-2.0
"""A synchronizer driver over a plain directory of files, with a lock.

An epoch is a directory in it, a record a file in that; their names tell what a list must::

    01795394400123456789-5be0cd19-0/                  number, chance, turns
        01795394400123456801.6a09e667f3bcc908.live    version, digest of the key, or .dead
        floor                                         cursors below it need a resync

One order: a write gives its file a version above all others, under the lock. The rename is the
commit: who dies before it has done nothing, who dies behind it leaves the former file to whoever
comes next. Versions begin at the epoch's number, so that they serve as revisions, too.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import secrets
import shutil
import time

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import (
    batches,
    clocks,
    driver_base,
    epoch_memory,
    polling,
)

OPTS = [cfg.StrOpt("path", default="/var/lib/nova/nodb-records", help="Directory of the records.")]
LOCK_SECONDS = 30.0


class Epoch:
    """The directory of one epoch, as it stands while the lock is held."""

    def __init__(self, root, name):
        self.path, self.held = os.path.join(root, name), {}
        number, _chance, turns = name.split("-")
        self.rank = epoch_memory.Rank(int(number), name, int(turns))
        listed = sorted(os.listdir(self.path))
        self.floor = int(self.read("floor")) if "floor" in listed else int(number)
        for version, digest, kind in (each.split(".") for each in listed if each.count(".") == 2):
            self.remove(digest)
            self.held[digest] = (int(version), kind)
        self.head = max([self.floor, *(version for version, _kind in self.held.values())])
        self.cursor = records.Cursor(name, self.head)

    def file_of(self, digest):
        version, kind = self.held[digest]
        return os.path.join(self.path, f"{version:020d}.{digest}.{kind}")

    def read(self, name):
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def put(self, name, content):
        """Make a file or write over it, whole or not at all."""
        with open(os.path.join(self.path, "new"), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(file.name, os.path.join(self.path, name))

    def remove(self, digest):
        if digest in self.held:
            os.unlink(self.file_of(digest))
            del self.held[digest]

    def record(self, digest):
        if digest not in self.held:
            return None
        version, kind = self.held[digest]
        name, _line_end, payload = self.read(self.file_of(digest)).partition(b"\n")
        key = records.RecordKey(*json.loads(name))
        return records.Record(key, version, version, payload, kind == "dead")

    def write(self, write):
        digest = digest_of(write.key)
        if not write.wins(standing := self.record(digest)):
            return records.WriteResult(records.Verdict.LOST, standing)
        self.head += 1
        kind, payload = ("dead", b"") if write.deleted else ("live", write.payload)
        name = json.dumps([write.key.namespace, write.key.key]).encode()
        self.put(f"{self.head:020d}.{digest}.{kind}", name + b"\n" + payload)
        self.remove(digest)
        self.held[digest] = (self.head, kind)
        made = records.Record(write.key, self.head, self.head, payload, write.deleted)
        return records.WriteResult(records.Verdict.WON, made, self.rank.name)


class DirectorySynchronizer(driver_base.Driver):
    """One client of one directory."""

    name = "directory"
    capabilities = contract.Capabilities(
        durable=True,
        shared=True,
        feed=contract.Feed.POLL,
        max_payload_bytes=4 << 20,
        clock=contract.Clock.WRITE_TIMESTAMP,
    )

    def __init__(self, path):
        super().__init__()
        self._path, self._is_open = path, False
        self._memory = epoch_memory.EpochMemory()
        self._clock = clocks.WriteTimestampClock(self._stamp, path, grain_seconds=0.01)

    @classmethod
    def register_opts(cls, conf):
        conf.register_opts(OPTS, group="nodb_directory")

    @classmethod
    def from_config(cls, conf):
        return cls(conf.nodb_directory.path)

    def open(self):
        with self._translated():
            os.makedirs(self._path, exist_ok=True)
        self._is_open = True

    def close(self):
        self._is_open = False

    def head(self):
        with self._locked() as epoch:
            return epoch.cursor

    def snapshot(self, namespaces=None):
        # All at once, for simplicity: a real one reads its pages while they are asked for.
        with self._locked() as epoch:
            live = [digest for digest, (_version, kind) in epoch.held.items() if kind == "live"]
            found = [epoch.record(digest) for digest in live]
        wanted = [r for r in found if namespaces is None or r.key.namespace in namespaces]
        return contract.SnapshotPages(epoch.cursor, batches.split(wanted, 500))

    def fetch(self, cursor, limit=1000):
        with self._locked() as epoch:
            where = {"epoch": epoch.rank.name, "head": epoch.head, "floor": epoch.floor}
            if refused := polling.resync_reason(cursor, **where):
                return refused
            in_order = sorted((version, digest) for digest, (version, _) in epoch.held.items())
            changed = [digest for version, digest in in_order if version > cursor.version]
            found = tuple(epoch.record(digest) for digest in changed[:limit])
            if more := len(found) < len(changed):
                return records.Changes(found, records.Cursor(cursor.epoch, found[-1].version), more)
            return records.Changes(found, epoch.cursor)

    def _read_batch(self, keys):
        with self._locked() as epoch:
            found = [epoch.record(digest_of(key)) for key in keys]
        return {record.key: record for record in found if record is not None}

    def _write_batch(self, writes):
        batch = batches.PendingBatch(writes)
        try:
            with self._locked() as epoch:
                for place, write in enumerate(writes):
                    # Until it is done: nobody can tell what a disk that fails has kept.
                    batch.results[place] = batches.UNKNOWN
                    batch.results[place] = epoch.write(write)
                self._memory.note_version(epoch.rank.name, epoch.head)
        except errors.BackendUnavailable as error:
            batch.break_off(error)
        return batch.answers()

    def now_seconds(self):
        return self._clock.now_seconds()

    def collect(self, keep_seconds):
        before = self.now_seconds() - keep_seconds
        with self._locked() as epoch:
            dead = [digest for digest, (_version, kind) in epoch.held.items() if kind == "dead"]
            old = [each for each in dead if os.stat(epoch.file_of(each)).st_mtime <= before][:1000]
            # The floor first: no cursor may miss what is removed behind it.
            floor = max([epoch.floor, *(epoch.held[digest][0] for digest in old)])
            epoch.put("floor", b"%d" % floor)
            for digest in old:
                epoch.remove(digest)
        return contract.Collected(len(old), 0, floor)

    def statistics(self):
        with self._locked() as epoch:
            kinds = [kind for _version, kind in epoch.held.values()]
            size_bytes = sum(os.stat(epoch.file_of(digest)).st_size for digest in epoch.held)
        live, dead = kinds.count("live"), kinds.count("dead")
        return driver_base.totals(epoch.cursor, epoch.floor, live, dead, size_bytes)

    def reset(self):
        with self._root_locked() as root:
            self._begin(root)

    def _unavailable(self, reason):
        return errors.BackendUnavailable(self._path, str(reason))

    @contextlib.contextmanager
    def _translated(self):
        try:
            yield
        except OSError as error:
            raise self._unavailable(error) from error

    @contextlib.contextmanager
    def _root_locked(self):
        if not self._is_open:
            raise self._unavailable("the client is not open")
        # The path may lead elsewhere at any time: to one place for all of a call.
        root = os.path.realpath(self._path)
        deadline = time.monotonic() + LOCK_SECONDS
        with self._translated(), open(os.path.join(root, "lock"), "a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(random.uniform(0.0, 0.002))
            try:
                yield root
            finally:
                # By name: a process that was forked meanwhile has the file open, too.
                fcntl.flock(lock, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _locked(self):
        """Give the epoch in force while the lock is held."""
        with self._root_locked() as root:
            epoch = Epoch(root, names[-1]) if (names := epochs_in(root)) else self._begin(root)
            turn = self._memory.turn_to_replace(epoch.rank, self._unavailable)
            # An older state of the epoch may have been put back, too.
            if turn is not None or epoch.head < self._memory.version_seen(epoch.rank.name):
                epoch = self._begin(root, turn or 0)
            self._memory.note_version(epoch.rank.name, epoch.head)
            yield epoch

    def _begin(self, root, turn=0):
        """Begin an epoch behind all that were seen, whatever the clock says."""
        number = self._memory.number_above(int(self._stamp() * 1e9))
        name = f"{number:020d}-{secrets.token_hex(4)}-{turn}"
        former = epochs_in(root)
        os.mkdir(os.path.join(root, name))
        for each in former:
            shutil.rmtree(os.path.join(root, each))
        epoch = Epoch(root, name)
        self._memory.admits(epoch.rank)
        return epoch

    def _stamp(self):
        """Have the file system say its time."""
        with self._translated(), open(os.path.join(self._path, "stamp"), "a") as file:
            os.utime(file.fileno())
            return os.fstat(file.fileno()).st_mtime


def epochs_in(root):
    return sorted(name for name in os.listdir(root) if name[0].isdigit())


def digest_of(key):
    return hashlib.sha256(f"{key.namespace}\n{key.key}".encode()).hexdigest()[:32]
