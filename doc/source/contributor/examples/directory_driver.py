# SPDX-License-Identifier: Apache-2.0
"""A synchronizer driver over a plain directory of files, with a lock.

An epoch is a directory in it, a record a file in that; their names tell what a list must::

    01795394400123456789-5be0cd19-0/                  number, chance, turns
        01795394400123456801.6a09e667f3bcc908.live    version, digest of the key, or .dead
        floor                                         cursors below it need a resync

A write gives its file a version above all others, under the lock; its rename is the commit. Who
dies behind it leaves the former file to whoever comes next. Versions begin at the epoch's number.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import secrets
import shutil

import tenacity
from oslo_config import cfg

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import (
    batches,
    clocks,
    driver_base,
    epoch_memory,
)

PAUSE = tenacity.wait_fixed(0.001)


class Epoch:
    """The directory of one epoch, as it stands while the lock is held."""

    def __init__(self, path):
        number, _chance, turns = path.name.split("-")
        self.path, self.rank = path, epoch_memory.Rank(int(number), path.name, int(turns))
        floor = path / "floor"
        self.floor = self.head = int(floor.read_text()) if floor.exists() else int(number)
        #: The file of each record, by the digest of its key.
        self.held = {}
        for file in sorted(path.glob("*.*.*")):
            self.keep(file)
        self.cursor = records.Cursor(path.name, self.head)

    def keep(self, file):
        """Take in a file; what it stands in for is removed."""
        version, digest, _kind = file.name.split(".")
        if digest in self.held:
            self.held[digest].unlink()
        self.held[digest], self.head = file, max(self.head, int(version))

    def put(self, name, content):
        """Make a file or write over it, whole or not at all."""
        with open(self.path / "new", "wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        return pathlib.Path(file.name).rename(self.path / name)

    def read(self, key):
        file = self.held.get(digest_of(key))
        return None if file is None else record_in(file)

    def write(self, write):
        standing = self.read(write.key)
        if not write.wins(standing):
            return records.WriteResult(records.Verdict.LOST, standing)
        kind, payload = ("dead", b"") if write.deleted else ("live", write.payload)
        name = json.dumps([write.key.namespace, write.key.key]).encode()
        file = f"{self.head + 1:020d}.{digest_of(write.key)}.{kind}"
        self.keep(self.put(file, name + b"\n" + payload))
        return records.WriteResult(records.Verdict.WON, self.read(write.key), self.rank.name)


class DirectorySynchronizer(driver_base.Driver):
    """One client of one directory."""

    name, GROUP = "directory", "nodb_directory"
    OPTS = (cfg.StrOpt("path", default="/var/lib/nova/nodb", help="Directory of the records."),)
    capabilities = contract.Capabilities(durable=True, clock=contract.ClockSource.WRITE_TIMESTAMP)

    def __init__(self, settings):
        super().__init__(settings.path)
        self._path = pathlib.Path(settings.path)
        self._memory = epoch_memory.EpochMemory()
        self._clock = clocks.WriteTimestampClock(self._stamp, settings.path, grain_seconds=0.01)

    def _check(self):
        self._path.mkdir(parents=True, exist_ok=True)

    def _head(self):
        with self._locked() as epoch:
            return epoch.cursor

    def _pages(self, cursor, namespaces):
        # All at once, for simplicity: a real one reads its pages while they are asked for.
        with self._locked() as epoch:
            return list(batches.split(map(record_in, epoch.held.values()), 500))

    def _fetch(self, cursor, limit):
        with self._locked() as epoch:
            refused = driver_base.resync_reason(cursor, epoch.cursor, epoch.floor)
            if refused is not None:
                return refused
            begin = f"{cursor.version + 1:020d}"
            changed = sorted(file for file in epoch.held.values() if file.name >= begin)
            found = list(map(record_in, changed[:limit]))
            return driver_base.changes_of(found, epoch.cursor, more=len(changed) > limit)

    def _read_batch(self, keys):
        with self._locked() as epoch:
            return list(map(epoch.read, keys))

    def _write_batch(self, writes):
        with self._locked() as epoch:
            return batches.one_by_one(writes, epoch.write, in_doubt=OSError)

    def _collect(self, keep_seconds):
        before = self.now_seconds() - keep_seconds
        with self._locked() as epoch:
            dead = [file for file in epoch.held.values() if file.suffix == ".dead"]
            old = [file for file in dead if file.stat().st_mtime <= before][:1000]
            # The floor first: no cursor may miss what is removed behind it.
            floor = max([epoch.floor, *(record_in(file).version for file in old)])
            epoch.put("floor", b"%d" % floor)
            for file in old:
                file.unlink()
        return contract.Collected(len(old), 0, floor)

    def _statistics(self):
        with self._locked() as epoch:
            held = map(record_in, epoch.held.values())
            return driver_base.totals_of(held, epoch.cursor, epoch.floor)

    def _reset(self):
        with self._locked(self._begin):
            pass

    @contextlib.contextmanager
    def _locked(self, choose=None):
        """Give the epoch in force while the lock is held; translates errors, once."""
        try:
            # The path may lead elsewhere at any time: to one place for all of a call.
            root = self._path.resolve()
            with open(root / "lock", "a") as lock, contextlib.ExitStack() as at_the_end:
                patience = {"wait": PAUSE, "stop": tenacity.stop_after_delay(30), "reraise": True}
                tenacity.Retrying(**patience)(fcntl.flock, lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # By name: a process that was forked meanwhile has the file open, too.
                at_the_end.callback(fcntl.flock, lock, fcntl.LOCK_UN)
                epoch = (choose or self._in_force)(root)
                yield epoch
                self._memory.note_version(epoch.rank.name, epoch.head)
        except OSError as error:
            raise self._unavailable(error) from error

    def _in_force(self, root):
        names = sorted(root.glob("[0-9]*"))
        epoch = Epoch(names[-1]) if names else self._begin(root)
        turn = self._memory.turn_to_replace(epoch.rank, self._unavailable, epoch.head)
        return epoch if turn is None else self._begin(root, turn)

    def _begin(self, root, turn=0):
        """Begin an epoch behind all that were seen, whatever the clock says."""
        number = self._memory.number_above(int(self._stamp() * 1e9))
        former, name = list(root.glob("[0-9]*")), f"{number:020d}-{secrets.token_hex(4)}-{turn}"
        (root / name).mkdir()
        for each in former:
            shutil.rmtree(each)
        epoch = Epoch(root / name)
        self._memory.admits(epoch.rank)
        return epoch

    def _stamp(self):
        """Have the file system say its time."""
        stamp = self._path / "stamp"
        stamp.touch()
        return stamp.stat().st_mtime


def digest_of(key):
    return hashlib.sha256(f"{key.namespace}\n{key.key}".encode()).hexdigest()[:32]


def record_in(file):
    version, _digest, kind = file.name.split(".")
    name, _line_end, payload = file.read_bytes().partition(b"\n")
    key = records.RecordKey(*json.loads(name))
    return records.Record(key, int(version), int(version), payload, kind == "dead")
