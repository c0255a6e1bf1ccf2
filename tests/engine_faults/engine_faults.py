# SPDX-License-Identifier: Apache-2.0
"""What happens to engines: crashes, freezes, networks, disks; data that are lost, full or old.

A disk that is full is a small file system of the server's own; to mount one
needs root, and a trial says so where it is not. Putting back copies the whole
data directory of a stopped server, as a volume's snapshot does: members, names,
tokens and ids are what they were.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.testing import proxy, redis_server, server_processes
from tests.engine_faults import engines, fault, steps, world

# -- the server and the network ----------------------------------------------------------


def _outage(trial: fault.Trial) -> None:
    """Wait until everybody should have noticed, and see that they have."""
    time.sleep(fault.OUTAGE_SECONDS)
    trial.told()


def _crash(trial: fault.Trial) -> None:
    trial.engine.server.kill()
    _outage(trial)
    trial.engine.server.start()
    trial.healed()
    trial.recovered()


def _restart(trial: fault.Trial) -> None:
    trial.engine.server.restart()
    trial.healed()
    trial.recovered()


def _freeze(trial: fault.Trial) -> None:
    trial.engine.freeze()
    try:
        _outage(trial)
    finally:
        trial.engine.thaw()
    trial.healed()
    trial.recovered()


def _cut(trial: fault.Trial) -> None:
    assert trial.engine.proxy is not None
    for _ in range(8):
        time.sleep(0.3)
        trial.engine.proxy.cut()
    trial.healed()
    trial.recovered()


def _half_open(trial: fault.Trial) -> None:
    assert trial.engine.proxy is not None
    trial.engine.proxy.lose_requests()
    _outage(trial)
    trial.engine.proxy.heal()
    trial.healed()
    trial.recovered()


def _lost_replies(trial: fault.Trial) -> None:
    assert trial.engine.proxy is not None
    trial.engine.proxy.lose_replies()
    _outage(trial)
    trial.engine.proxy.heal()
    trial.healed()
    trial.recovered()


def _numb(trial: fault.Trial) -> None:
    """Connections that are open pass nothing for ever; new ones do."""
    assert trial.engine.proxy is not None
    trial.engine.proxy.numb()
    trial.healed()
    trial.recovered()
    trial.engine.proxy.heal()


SERVERS = (
    fault.Fault("engine killed and started", fault.ENGINE_SECONDS, _crash, restarts=True),
    fault.Fault("engine restarted at once", fault.ENGINE_SECONDS, _restart, restarts=True),
    fault.Fault("engine frozen", fault.ENGINE_SECONDS, _freeze),
    fault.Fault("connections cut during claims", fault.ENGINE_SECONDS, _cut, proxied=True),
    fault.Fault("requests lost, half-open", fault.ENGINE_SECONDS, _half_open, proxied=True),
    fault.Fault("replies lost after the commit", fault.ENGINE_SECONDS, _lost_replies, proxied=True),
    fault.Fault("open connections go dead", fault.ENGINE_SECONDS, _numb, proxied=True),
)

# -- data that are lost --------------------------------------------------------------------


def _reset(trial: fault.Trial) -> None:
    trial.world.client.reset()
    trial.healed()
    trial.recovered()


def _flush(trial: fault.Trial) -> None:
    trial.engine.server.flush_all()
    trial.healed()
    trial.recovered()


RESET = fault.Fault("reset by the operator", fault.ENGINE_SECONDS, _reset, loses=True)
FLUSHES = (fault.Fault("flushed", fault.ENGINE_SECONDS, _flush, loses=True),)

# -- backups that are restored ---------------------------------------------------------------


def _sql_backup(trial: fault.Trial) -> None:
    """Tables as they were seconds ago, in one transaction, under schedulers that work."""
    engine = sa.create_engine(str(trial.world.site.direct.options["connection"]))
    try:
        names = [each for each in sa.inspect(engine).get_table_names() if each[:5] == "nodb_"]
        names = [each for each in names if "alembic" not in each]
        with engine.begin() as connection:
            for name in names:
                connection.execute(sa.text(f"CREATE TABLE kept_{name} AS SELECT * FROM {name}"))
        if not trial.world.wait_grants(8, 30.0):
            raise world.Broken("nobody was granted anything")
        _restore_tables(engine, names)
    finally:
        engine.dispose()
    trial.healed()
    trial.recovered()


def _restore_tables(engine: sa.Engine, names: list[str]) -> None:
    deadline = time.monotonic() + 15.0
    while True:
        try:
            with engine.begin() as connection:
                for name in names:
                    connection.execute(sa.text(f"DELETE FROM {name}"))
                    connection.execute(sa.text(f"INSERT INTO {name} SELECT * FROM kept_{name}"))
            break
        except sa.exc.OperationalError:
            if time.monotonic() > deadline:
                raise world.Broken("the backup could not be restored") from None
    with engine.begin() as connection:
        for name in names:
            connection.execute(sa.text(f"DROP TABLE kept_{name}"))


SQL_BACKUP = fault.Fault("old backup restored", fault.ENGINE_SECONDS, _sql_backup, loses=True)


def _redis_backup(trial: fault.Trial) -> None:
    server = trial.engine.server
    dump, kept = server.directory / "dump.rdb", server.directory / "kept.rdb"
    with server.client() as client:
        client.save()
    shutil.copy(dump, kept)
    if not trial.world.wait_grants(8, 30.0):
        raise world.Broken("nobody was granted anything")
    server.kill()
    shutil.copy(kept, dump)
    server.start()
    trial.healed()
    trial.recovered()


def _stale_replica(trial: fault.Trial) -> None:
    """The address moves to a replica that lacks the last seconds, as a failover moves it."""
    engine = trial.engine
    assert isinstance(engine, engines.Redis) and engine.proxy is not None
    feed = engine._use(proxy.Proxy(engine.port))
    replica = engine._use(redis_server.Redis()).server
    with replica.client() as client:
        client.replicaof("127.0.0.1", int(feed.address.rpartition(":")[2]))
        deadline = time.monotonic() + 15.0
        while client.info("replication").get("master_link_status") != "up":
            if time.monotonic() > deadline:
                raise world.Broken("the replica does not follow")
            time.sleep(0.1)
        time.sleep(1.0)
        feed.lose_replies()
        if not trial.world.wait_grants(8, 30.0):
            raise world.Broken("nobody was granted anything")
        client.replicaof("NO", "ONE")
    engine.proxy.redirect(replica.port)
    trial.healed()
    trial.recovered()


REDIS = (
    *FLUSHES,
    fault.Fault(
        "old backup restored",
        fault.ENGINE_SECONDS,
        _redis_backup,
        server=("--save", "3600 1000000"),
        loses=True,
    ),
    fault.Fault(
        "stale replica promoted",
        fault.ENGINE_SECONDS,
        _stale_replica,
        proxied=True,
        private=True,
        moves=True,
        loses=True,
    ),
)


def _etcd_backup(trial: fault.Trial, token: str) -> None:
    """Restore a snapshot some grants later, as a cluster of another name or of the same."""
    server = trial.engine.server
    backup = server.directory / f"backup-{trial.number}"
    _etcdctl(server, "snapshot", "save", str(backup))
    if not trial.world.wait_grants(8, 30.0):
        raise world.Broken("nobody was granted anything")
    server.kill()
    server.empty()
    _etcdctl(
        server,
        *("snapshot", "restore", str(backup), f"--data-dir={server.directory / 'data'}"),
        *("--name=one", f"--initial-cluster-token={token}"),
        f"--initial-cluster=one={server.peer_url}",
        f"--initial-advertise-peer-urls={server.peer_url}",
    )
    server.start()
    trial.healed()
    trial.recovered()


def _etcdctl(server: object, *arguments: str) -> None:
    program = server_processes.find_program("etcdctl")
    subprocess.run(
        [program, "--endpoints", server.url, *arguments],  # type: ignore[attr-defined]
        env={**os.environ, "ETCDCTL_API": "3"},
        check=True,
        capture_output=True,
    )


# -- engines that are full --------------------------------------------------------------------


def _full_etcd(trial: fault.Trial) -> None:
    server = trial.engine.server
    try:
        for number in range(400):
            server.put(f"junk-{number}", os.urandom(20_000))
    except (urllib.error.HTTPError, OSError):
        pass
    _outage(trial)
    member = server.post("/maintenance/status", {})["header"]["member_id"]
    end = {"key": "anVuaw==", "range_end": "anVubA=="}  # junk to junl
    server.post("/kv/deleterange", end)
    server.compact()
    server.post("/maintenance/defragment", {})
    alarm = {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member}
    server.post("/maintenance/alarm", alarm)
    trial.healed()
    trial.recovered()


def _compaction(trial: fault.Trial) -> None:
    """History goes under everybody's eyes, again and again."""
    for _ in range(5):
        time.sleep(0.4)
        trial.engine.server.compact()
    trial.healed()
    trial.recovered()


ETCD = (
    fault.Fault("compacted during claims", fault.ENGINE_SECONDS, _compaction),
    fault.Fault(
        "old backup restored",
        fault.ENGINE_SECONDS,
        lambda trial: _etcd_backup(trial, "restored"),
        private=True,
        loses=True,
    ),
    fault.Fault(
        "old backup restored with the same token",
        fault.ENGINE_SECONDS,
        # etcd's own default, by which ours was begun: the cluster's id is the same.
        lambda trial: _etcd_backup(trial, "etcd-cluster"),
        private=True,
        loses=True,
    ),
    fault.Fault(
        "engine full",
        fault.ENGINE_SECONDS,
        _full_etcd,
        server=("--quota-backend-bytes=4000000", "--auto-compaction-retention=1h"),
        private=True,
    ),
)


def _full_redis(trial: fault.Trial) -> None:
    import redis

    with trial.engine.server.client() as client:
        junk: list[str] = []
        deadline = time.monotonic() + fault.OUTAGE_SECONDS
        while time.monotonic() < deadline:
            # What schedulers free is filled again, down to the last bytes.
            for size in (2_000, 100, 1):
                with contextlib.suppress(redis.ResponseError):
                    while time.monotonic() < deadline:
                        client.set(f"junk-{len(junk)}", os.urandom(size))
                        junk.append(f"junk-{len(junk)}")
            time.sleep(0.02)
        # What replaces a record of its size may be taken: a feed that still brings
        # its canaries is no dead one.
        trial.note_told()
        for start in range(0, len(junk), 1_000):
            client.delete(*junk[start : start + 1_000])
    trial.healed()
    trial.recovered()


REDIS += (
    fault.Fault(
        "engine full",
        fault.ENGINE_SECONDS,
        _full_redis,
        server=("--maxmemory", "8mb", "--maxmemory-policy", "noeviction"),
        private=True,
    ),
)


def _full_memcached(trial: fault.Trial) -> None:
    from pymemcache import exceptions
    from pymemcache.client import base

    sizes = (100, 500, 1_000, 2_000, 5_000, 20_000, 100_000)
    client = base.Client(trial.engine.server.address, timeout=5.0)
    names = []
    for size in sizes:
        # Every class of sizes has pages of its own.
        for number in range(100_000):
            name = f"junk-{size}-{number}"
            try:
                if not client.set(name, bytes(size), noreply=False):
                    break
            except exceptions.MemcacheError:
                break
            names.append(name)
    trial.notes["items of others"] = len(names)
    time.sleep(fault.OUTAGE_SECONDS)
    trial.note_told()
    for name in names:
        client.delete(name, noreply=True)
    client.version()
    client.close()
    trial.healed()
    trial.recovered()


def _eviction(trial: fault.Trial) -> None:
    from pymemcache.client import base

    client = base.Client(trial.engine.server.address, timeout=5.0)
    for number in range(60_000):
        size = (60, 150, 300, 600, 1_200, 2_400)[number % 6]
        client.set(f"junk-{number}", bytes(size), noreply=True)
    evicted = int(client.stats()[b"evictions"])
    client.close()
    trial.notes["evicted"] = evicted
    if not evicted:
        raise world.Broken("nothing was evicted")
    trial.healed()
    trial.recovered()


MEMCACHED = (
    *FLUSHES,
    fault.Fault(
        "engine full",
        fault.ENGINE_SECONDS,
        _full_memcached,
        server=("-m", "8", "-M"),
        private=True,
    ),
    fault.Fault(
        "records evicted",
        fault.ENGINE_SECONDS,
        _eviction,
        server=("-m", "8"),
        private=True,
        loses=True,
    ),
)

# -- Galera -----------------------------------------------------------------------------------


def _galera_commit(trial: fault.Trial) -> None:
    """The second node dies while a scheduler stands before its commit there."""
    engine = trial.engine
    assert isinstance(engine, engines.Galera)
    cluster = engine.cluster
    victim = trial.world.schedulers[1]
    trial.world.clerk.at_step = cluster.second.kill
    victim.ask("arm", "driver", "commit", steps.Action.TELL.value, "")
    if not victim.reached(20.0):
        raise world.Broken("nobody came by a commit")
    # The first goes on alone, once the second is put out of the cluster.
    if not trial.world.wait_grants(3, fault.CLUSTER_SECONDS):
        raise world.Broken("the first node does not go on")
    cluster.second.start()
    cluster.wait_until_whole()
    trial.healed()
    trial.recovered()


def _galera_freeze(trial: fault.Trial) -> None:
    engine = trial.engine
    assert isinstance(engine, engines.Galera)
    engine.cluster.second.pause()
    if not trial.world.wait_grants(3, fault.CLUSTER_SECONDS):
        raise world.Broken("the first node does not go on")
    time.sleep(fault.OUTAGE_SECONDS)
    engine.cluster.second.resume()
    engine.cluster.wait_until_whole()
    trial.healed()
    trial.recovered()


GALERA = (
    fault.Fault("node killed in mid-commit", fault.CLUSTER_SECONDS, _galera_commit),
    fault.Fault("node frozen and back", fault.CLUSTER_SECONDS, _galera_freeze),
)


#: Room on a full disk before it is filled, beside what stands there already.
_ROOM_BYTES = 48 << 20
_JUNK_BYTES = (1 << 20, 1 << 14, 1 << 12)


def _kept(trial: fault.Trial) -> pathlib.Path:
    return pathlib.Path(trial.engine.server.directory) / "data"


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    # Owners, modes and times included; and whatever the server has beside files.
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


# -- put back to an earlier day ------------------------------------------------------------


def _roll_back(trial: fault.Trial) -> None:
    """Stop the server, and start it with its data of some grants ago."""
    server: Any = trial.engine.server
    data = _kept(trial)
    earlier = data.with_name("earlier")
    server.kill()
    _copy(data, earlier)
    server.start()
    trial.world.recover(world.START_SECONDS)
    if not trial.world.wait_grants(8, 30.0):
        raise world.Broken("nobody was granted anything")
    server.kill()
    shutil.rmtree(data)
    earlier.rename(data)
    server.start()
    # As many writes as were lost come at once: what is there is as new as what was.
    trial.healed()
    trial.recovered()


ROLLED_BACK = fault.Fault(
    "disk put back to an earlier day", fault.ENGINE_SECONDS, _roll_back, private=True, loses=True
)


# -- full ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _small_disk(directory: pathlib.Path) -> Iterator[None]:
    """Have a directory on a small file system of its own; its owner must not run meanwhile."""
    used = sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file())
    before = directory.with_name(directory.name + ".before")
    directory.rename(before)
    directory.mkdir()
    size = used + _ROOM_BYTES
    if lacking := engines.mount_small_disk(directory, size):
        raise world.Broken(lacking)
    try:
        _copy_into(before, directory)
        yield
    finally:
        engines.unmount(directory)


def _copy_into(source: pathlib.Path, target: pathlib.Path) -> None:
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)
    shutil.rmtree(source)


def _fill(junk: pathlib.Path, until: float) -> int:
    """Write until nothing more goes, and again whatever becomes free; return the bytes."""
    written = 0
    with junk.open("ab", buffering=0) as file:
        while time.monotonic() < until:
            for size in _JUNK_BYTES:
                try:
                    while time.monotonic() < until:
                        written += file.write(os.urandom(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            time.sleep(0.02)
    return written


def _full(trial: fault.Trial) -> None:
    """Fill the server's disk to the last block for as long as any time-out, and empty it."""
    server: Any = trial.engine.server
    data = _kept(trial)
    server.kill()
    with _small_disk(data):
        server.start()
        trial.world.recover(world.START_SECONDS)
        junk = data.parent / "data" / "junk"
        trial.notes["junk"] = _fill(junk, time.monotonic() + 2 * fault.OUTAGE_SECONDS)
        trial.note_told()
        junk.unlink()
        if not server.answers():
            # One that crashed of it is started again by whoever watches it.
            server.restart()
        trial.healed()
        trial.recovered()
        time.sleep(0.3)
        # Before the file system goes: afterwards nothing answers for what stood there.
        trial.world.check()
        server.kill()
        after = data.with_name("data.after")
        _copy(data, after)
    data.rmdir()
    after.rename(data)
    server.start()


FULL_DISK = fault.Fault("disk full", fault.ENGINE_SECONDS, _full, private=True)


def _full_sqlite(trial: fault.Trial) -> None:
    """Fill the disk of the file, and of what every scheduler writes beside it; and empty it."""
    engine = trial.engine
    assert isinstance(engine, engines.SQLite)
    if engine.lacks_disk:
        raise world.Broken(engine.lacks_disk)
    junk = engine.directory / "junk"
    trial.notes["junk"] = _fill(junk, time.monotonic() + 2 * fault.OUTAGE_SECONDS)
    trial.note_told()
    junk.unlink()
    trial.healed()
    trial.recovered()


FULL_SQLITE = fault.Fault(
    "disk full",
    fault.ENGINE_SECONDS,
    _full_sqlite,
    server=(engines.SQLite.SMALL_DISK,),
    private=True,
)
