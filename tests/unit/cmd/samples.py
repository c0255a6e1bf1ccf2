# SPDX-License-Identifier: Apache-2.0
"""A back end with what the plugin's processes write about themselves, and answers."""

import fixtures

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import objects


class BackendFixture(fixtures.Fixture):
    """A memory hub, and one client that writes what processes would."""

    def _setUp(self):
        self.hub = memory.MemoryHub()
        self._writer = memory.MemorySynchronizer(shared_hub=self.hub)
        self._writer.open()
        self.addCleanup(self._writer.close)
        declared = {each.name: each for each in known_namespaces.BUILT_IN}
        self._publishers = {
            owner: publisher.Publisher(self._writer, declared, owner)
            for owner in (known_namespaces.NODB, known_namespaces.NOVA, known_namespaces.PLACEMENT)
        }

    def client(self):
        """A client of its own, as a command has; not opened."""
        return memory.MemorySynchronizer(shared_hub=self.hub)

    def write(self, namespace, key, state, owner=known_namespaces.NODB):
        self._publishers[owner].publish({records.RecordKey(namespace, key): lambda current: state})

    def delete(self, namespace, key, owner=known_namespaces.NODB):
        self.write(namespace, key, publisher.DELETE, owner)

    def write_raw(self, namespace, key, payload):
        self._writer.write([records.Write(records.RecordKey(namespace, key), 0, payload)])

    def scheduler(self, host, pid, age_seconds=0.0, **more):
        """A worker's beat."""
        self.write(
            known_namespaces.SCHEDULERS.name,
            f"{host}:{pid}:1",
            {
                "host": host,
                "pid": pid,
                "plugin": "1.0",
                "nova": "34.0.0",
                "beat_at": self._writer.now_seconds() - age_seconds,
                "fallbacks": {"cold": 1},
                "outcomes": {"selected": 3},
                "hosts": 5,
                "state": "following",
                "lag_seconds": 0.2,
                "epoch": self._writer.head().epoch,
                **more,
            },
        )

    def mirror(self, age_seconds=0.0, **more):
        """What the keeper of Placement's mirror says when it has compared it."""
        state = {
            "epoch": self._writer.head().epoch,
            "swept_from": self._writer.now_seconds() - age_seconds,
            "providers": 7,
            "broken": {},
            "differing": 0,
            "requests": 1,
            "seconds": 0.1,
            "keeper": "sched1:1:1",
            **more,
        }
        self.write(known_namespaces.MIRRORS.name, "placement", state, known_namespaces.PLACEMENT)

    def reporter(self, role, host, cell, age_seconds=0.0, guards=None, **more):
        """A reporter's beat."""
        self.write(
            known_namespaces.REPORTERS.name,
            f"{role}:{host}:{cell}",
            {
                "cell": cell,
                "guards": [cell] if guards is None else list(guards),
                "binary": role,
                "host": host,
                "pid": 5,
                "plugin": "1.0",
                "nova": "34.0.0",
                "beat_at": self._writer.now_seconds() - age_seconds,
                "queued": 0,
                "behind_seconds": {},
                "published": 1,
                "failed_flushes": 0,
                **more,
            },
        )

    def cell(self, name, epoch=None):
        """A cell that was swept."""
        now = self._writer.now_seconds()
        self.write(
            known_namespaces.CELLS.name,
            name,
            {
                "cell": name,
                "epoch": epoch or self._writer.head().epoch,
                "swept_from": now - 2,
                "swept_until": now - 1,
                "unreported": 0,
                "rows": 4,
                "by": "test",
            },
        )


def feed(state="following"):
    """What a worker says of its feed."""
    return objects.FeedStatus(
        state=state,
        driver="memory",
        epoch="e",
        cursor_version=7,
        lag_seconds=0.01,
        proof_age_seconds=0.5,
        fetch_age_seconds=0.1,
        resyncs={},
        snapshots=1,
        applied=7,
        quarantined=0,
        anti_entropy={},
        sweeps=0,
        failures=0,
        detail="",
    )


def status(host, pid, state="following", missing=None, quarantined=None):
    """A worker's answer over RPC."""
    missing = missing or {}
    return objects.SchedulerStatus(
        host=host,
        pid=pid,
        worker=f"{host}:{pid}:1",
        plugin_version="1.0",
        nova_version="34.0.0",
        feed=feed(state),
        scopes=[
            objects.ScopeStatus(
                scope="cell1",
                hosts=6,
                proved="cell1" not in missing,
                reason=missing.get("cell1", ""),
                fallbacks={},
            )
        ],
        reporters=[],
        quarantined=quarantined or {},
        quarantine=[],
        fallbacks={"feed not proved": 2},
        outcomes={"selected": 4},
        schedule_seconds_p50=0.25,
        schedule_seconds_p99=0.5,
        records={"compute_nodes": 6},
    )
