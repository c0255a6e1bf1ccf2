# SPDX-License-Identifier: Apache-2.0
"""Nova's table of compute nodes is away, and what answers for it is hurt."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

import attrs
import pymysql
from nova import exception as nova_exception
from nova import objects

from tests.faults import conductor_calls, leftovers
from tests.faults import trial as trial_module
from tools.stack import cloud as stack_cloud
from tools.stack import configuration, database

_TABLE = "compute_nodes"
_AWAY_TABLE = "shadow_nodb_compute_nodes"
_KEY = "pci_devices_compute_node_id_fkey"
_NO_TABLE = "(1146,"
"""MariaDB's error for a statement on a table that is not there."""
_NODES = 100
"""How many nodes are made in one conductor and read in another."""
_MOST_KILLS = 40
_RECORD_KILLS = 2
"""How often a command is killed behind a record that it wrote, in place of a change of tables."""
_NODB = configuration.STORE_DATABASE


@attrs.frozen
class _Place:
    """What a killed command may leave of one cell's tables: each step changes one of these."""

    key: bool
    names: frozenset[str]
    rows: int

    def text(self) -> str:
        key = "the key stands" if self.key else "no key"
        return f"{', '.join(sorted(self.names))} with {self.rows} rows, {key}"


def command_killed(trial: trial_module.Trial) -> None:
    """``restore`` and ``retire`` are killed behind each change that they make, and go on."""
    trial.boot("before")
    before = _nodes(trial)
    trial.fault("the control plane is stopped, and both commands are killed behind each change")
    with trial.stack.control_plane_stopped():
        for way, is_away in (("restore", False), ("retire", True)):
            kills = _kill_until_done(trial, way)
            trial.note(f"{way}: killed {kills} times, each time behind another change")
            trial.expect(kills >= 4, f"{way} was killed behind its steps ({kills} times)")
            for cell in trial.stack.settings.cell_names:
                _expect_ended(trial, cell, way, is_away, before)
    trial.heal("the control plane is started")
    trial.wait_served()
    trial.boot("after", 6)
    trial.expect(_nodes(trial) == before, "each compute node has the id and uuid that it had")


def _kill_until_done(trial: trial_module.Trial, way: str) -> int:
    """Kill the command behind its first change that is not yet there, until none is left.

    First some times behind records, of which a step writes many; then behind changes of tables.
    """
    for kills in range(_MOST_KILLS):
        with _looking(trial) as (head, tables):
            look: Callable[[], object] = head if kills < _RECORD_KILLS else tables
            standing = look()
            process = subprocess.Popen(
                trial.command("compute-nodes", way, "--json"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            while process.poll() is None and look() == standing:
                time.sleep(0.0005)
            if process.poll() is None:
                process.kill()
            told = process.communicate()[0]
            left = tables()
        if process.returncode != -signal.SIGKILL:
            trial.expect(process.returncode == 0, f"{way} ends ({told[-500:]})")
            return kills
        for cell, place in left.items():
            trial.say(f"{way} killed: {cell} has {place.text()}")
        status = trial.manage("compute-nodes", "status", "--json")
        is_told = status.returncode in (0, 1) and "healthy" in status.stdout
        trial.expect(is_told, f"status tells what {way} left: {status.stderr[-300:]}")
    trial.expect(False, f"{way} ends after {_MOST_KILLS} kills")
    return _MOST_KILLS


@contextlib.contextmanager
def _looking(
    trial: trial_module.Trial,
) -> Iterator[tuple[Callable[[], int], Callable[[], Mapping[str, _Place]]]]:
    """Look at what the commands change, often, on one connection: records, and cells' tables."""
    settings = trial.stack.settings
    with database.connect(settings) as connection, connection.cursor() as cursor:

        def one(statement: str, *values: object) -> list[tuple[object, ...]]:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

        def head() -> int:
            [(version,)] = one(f"SELECT MAX(version) FROM {_NODB}.nodb_sequence")
            return int(str(version))

        def look() -> Mapping[str, _Place]:
            return {cell: place(cell) for cell in settings.cell_names}

        def place(cell: str) -> _Place:
            schema = f"nova_{cell}"
            tables = one(
                "SELECT table_name FROM information_schema.tables"
                " WHERE table_schema = %s AND table_name IN (%s, %s)",
                schema,
                _TABLE,
                _AWAY_TABLE,
            )
            keys = one(
                "SELECT 1 FROM information_schema.table_constraints"
                " WHERE constraint_schema = %s AND constraint_name = %s",
                schema,
                _KEY,
            )
            rows = 0
            names = frozenset(str(name) for (name,) in tables)
            for name in names:
                with contextlib.suppress(pymysql.err.ProgrammingError):  # renamed since
                    [(count,)] = one(f"SELECT COUNT(*) FROM {schema}.{name}")
                    rows += int(str(count))
            return _Place(bool(keys), names, rows)

        yield head, look


def _expect_ended(
    trial: trial_module.Trial,
    cell: str,
    way: str,
    is_away: bool,
    before: Mapping[str, tuple[int, str]],
) -> None:
    with _looking(trial) as (_head, tables):
        place = tables()[cell]
    wanted = frozenset({_AWAY_TABLE if is_away else _TABLE})
    trial.expect(place.names == wanted, f"after {way} {cell} has {', '.join(wanted)}")
    trial.expect(place.key is not is_away, f"after {way} the key of {cell} is as it should be")
    if is_away:
        trial.expect(place.rows == 0, f"after {way} the table of {cell} is empty ({place.rows})")
        return
    rows = trial.stack.sql(f"SELECT uuid, id FROM nova_{cell}.{_TABLE} WHERE deleted = 0")
    held = {str(identity): int(number) for identity, number in rows}
    # Of several cells a node's uuid tells which one is its own.
    wrong = {key: number for key, number in held.items() if before.get(key, (0, ""))[0] != number}
    trial.expect(not wrong and bool(held), f"after {way} rows of {cell} have their ids: {wrong}")


def read_in_another_conductor(trial: trial_module.Trial) -> None:
    """What one conductor has written the other one reads at once: made, changed, gone."""
    cell = trial.stack.settings.cell_names[0]
    first, second, *_ = trial.stack.settings.conductor_names(cell)
    calls = conductor_calls.Conductors(trial.stack.settings, cell)
    stale: list[str] = []
    ids: list[int] = []
    began = time.monotonic()
    trial.fault(f"{_NODES} nodes are made, changed and deleted in {first} or {second}")
    with contextlib.closing(calls):
        for number in range(_NODES):
            writer, reader = (first, second) if number % 2 else (second, first)
            host = trial.name(f"node{number}")
            with calls.asking(writer) as context:
                node = _made(context, host)
                node.create()
                ids.append(node.id)
            with calls.asking(reader) as context:
                found = objects.ComputeNode.get_by_host_and_nodename(context, host, host)
                if (found.id, found.uuid) != (node.id, node.uuid):
                    stale.append(f"{host} made")
                found.running_vms = number + 1
                found.save()
            with calls.asking(writer) as context:
                again = objects.ComputeNode.get_by_uuid(context, node.uuid)
                if again.running_vms != number + 1:
                    stale.append(f"{host} changed")
                again.destroy()
            with calls.asking(reader) as context:
                with contextlib.suppress(nova_exception.ComputeHostNotFound):
                    objects.ComputeNode.get_by_uuid(context, node.uuid)
                    stale.append(f"{host} deleted")
    seconds = time.monotonic() - began
    trial.heal("they are gone")
    trial.expect(not stale, f"each is read as it was written: {stale[:5]}")
    trial.expect(ids == sorted(set(ids)), "each has an id above those before")
    trial.note(
        f"{_NODES} nodes, {6 * _NODES} calls in {seconds:.1f} s, {len(stale)} read otherwise than "
        "they were written"
    )
    trial.wait_served()
    trial.boot("after")


def _made(context: object, host: str) -> objects.ComputeNode:
    return objects.ComputeNode(
        context=context,
        uuid=str(uuid.uuid4()),
        host=host,
        hypervisor_hostname=host,
        hypervisor_type="fake",
        hypervisor_version=1,
        vcpus=4,
        memory_mb=1024,
        local_gb=10,
        vcpus_used=0,
        memory_mb_used=0,
        local_gb_used=0,
        cpu_info="{}",
        running_vms=0,
        mapped=0,
        cpu_allocation_ratio=1.0,
        ram_allocation_ratio=1.0,
        disk_allocation_ratio=1.0,
    )


def stock_conductor(trial: trial_module.Trial) -> None:
    """One of two conductors without the plugin's lines: its calls fail, and it changes nothing."""
    settings = trial.stack.settings
    cell = settings.cell_names[0]
    victim = settings.conductor_names(cell)[0]
    trial.boot("before")
    before = _nodes(trial)
    told = _told_absent(trial)
    trial.fault(f"{victim} without the plugin's lines")
    trial.stack.switch([victim], False)
    asked = trial.ask("during", 8)
    settled = trial.cloud.wait_settled(asked)
    active = sum(1 for server in settled if server["status"] == "ACTIVE")
    trial.note(f"{active} of {len(asked)} ACTIVE while every other call goes to a stock conductor")
    trial.forget([server for server in settled if server["status"] != "ACTIVE"])
    trial.expect(_told_absent(trial) > told, "who asks it for a compute node is told of no table")
    trial.expect(
        _places(trial) == {cell: {_AWAY_TABLE} for cell in settings.cell_names},
        "nobody has made the table anew",
    )
    trial.heal(f"{victim} with the plugin's lines")
    trial.stack.switch([victim], True)
    trial.wait_served()
    trial.cloud.delete_servers([server["id"] for server in settled])
    trial.forget(settled)
    trial.expect(_nodes(trial) == before, "each compute node has the id and uuid that it had")
    trial.boot("after", 6)
    leftovers.expect_none(trial)


def _told_absent(trial: trial_module.Trial) -> int:
    """Count how often MariaDB's word of a missing table stands in the logs of computes."""
    logs = (trial.stack.settings.log / f"{name}.log" for name in trial.stack.settings.compute_names)
    return sum(path.read_text(errors="replace").count(_NO_TABLE) for path in logs)


def restored_from_yesterday(trial: trial_module.Trial) -> None:
    """The back end's database is restored from a dump: while services live, and while none does.

    Since the dump a host came, whose node stands in the back end alone, and another one left.
    """
    stack = trial.stack
    *_rest, (victim, first_host, _cell) = stack.settings.compute_cells()
    host = first_host
    for stage in ("alive", "stopped"):
        dump = stack.settings.state / f"yesterday-{stage}.sql"
        _dump(trial, dump)
        trial.say("yesterday's dump is written")
        kept = trial.boot(f"today-{stage}", 4)
        former, host = host, f"{first_host}-{stage}"
        _replace_host(trial, victim, former, host)
        today = _nodes(trial)
        if stage == "alive":
            trial.fault("the back end is restored from yesterday's dump while services live")
            _load(trial, dump)
            trial.expect(
                trial.wait_noticed(stack.settings.cell_names[-1], 60.0) is not None,
                "a back end of yesterday is noticed",
            )
            trial.heal("it is restored")
        else:
            trial.fault("the back end is restored from yesterday's dump, the control plane stopped")
            with stack.control_plane_stopped():
                _load(trial, dump)
            trial.heal("the control plane is started")
            imported = trial.manage("import", "--json")
            trial.expect(imported.returncode == 0, f"all is swept: {imported.stderr[-500:]}")
        trial.wait_served()
        trial.wait_for(
            f"nova-compute has made what came since ({stage})",
            lambda today=today: set(_nodes(trial)) >= set(today),
            240.0,
        )
        now = _nodes(trial)
        other = sum(now.get(key) != node for key, node in today.items())
        trial.note(f"{stage}: {other} of {len(today)} nodes with other ids, hosts or none")
        trial.note(f"{stage}: {len(set(now) - set(today))} nodes are there again that had left")
        trial.expect(trial.compare(), f"compare is clean after a restore ({stage})")
        placed = trial.boot(f"on-it-{stage}", 2, host=host)
        on = {server["OS-EXT-SRV-ATTR:host"] for server in placed}
        trial.expect(on == {host}, f"{host}, which came since, takes servers")
        trial.boot(f"after-{stage}", 4)
        trial.cloud.delete_servers([server["id"] for server in (*kept, *placed)])
        trial.forget([*kept, *placed])
    _replace_host(trial, victim, host, first_host)
    # Reporters that yesterday lived and have ended since are named by status until forgotten.
    trial.wait_for(
        "allocations are those of the servers",
        lambda: leftovers.allocated(stack) == leftovers.standing(stack),
        90.0,
    )


def _replace_host(trial: trial_module.Trial, process: str, former: str, host: str) -> None:
    """Have a nova-compute leave, with its service and node, and come as a host of another name."""
    stack = trial.stack
    for server in trial.cloud.servers():
        if server["OS-EXT-SRV-ATTR:host"] == former:
            trial.cloud.delete_servers([server["id"]])
            trial.forget([server])
    stack.stop(process)
    for service in trial.cloud.services("nova-compute"):
        if service["host"] == former:
            trial.cloud.compute.delete(f"/os-services/{service['id']}")
    # What a new machine has not.
    (stack.settings.state / "nova" / process / "compute_id").unlink()
    first = host == stack.settings.host_of(process)
    stack.configure({process: None if first else {"DEFAULT": {"host": host}}})
    stack.start(process)
    trial.wait_for(
        f"{host} is there",
        lambda: any(s["host"] == host for s in trial.cloud.services("nova-compute")),
        120.0,
    )
    stack.discover_hosts()
    trial.wait_for(
        f"{host} has a node", lambda: host in {name for _id, name in _nodes(trial).values()}, 120.0
    )
    trial.say(f"{host} came for {former}")


def _dump(trial: trial_module.Trial, file: pathlib.Path) -> None:
    with file.open("w") as target:
        subprocess.run(
            [*_client(trial, "mariadb-dump"), "--single-transaction", _NODB],
            stdout=target,
            check=True,
        )


def _load(trial: trial_module.Trial, file: pathlib.Path) -> None:
    with file.open() as source:
        subprocess.run([*_client(trial, "mariadb"), _NODB], stdin=source, check=True)


def _client(trial: trial_module.Trial, program: str) -> list[str]:
    socket = trial.stack.settings.mariadb_socket
    return [program, f"--socket={socket}", "--user=root"]


def _places(trial: trial_module.Trial) -> dict[str, set[str]]:
    with _looking(trial) as (_head, tables):
        return {cell: set(place.names) for cell, place in tables().items()}


def _nodes(trial: trial_module.Trial) -> dict[str, tuple[int, str]]:
    """Ids and hosts of the compute nodes by uuid, as the API lists them."""
    numbers = {each["hypervisor_hostname"]: int(each["id"]) for each in _listed(trial, "2.52")}
    return {
        str(each["id"]): (numbers[each["hypervisor_hostname"]], str(each["service"]["host"]))
        for each in _listed(trial, "2.53")
    }


def _listed(trial: trial_module.Trial, microversion: str) -> list[stack_cloud.Json]:
    """Hypervisors; from 2.53 on their ids are uuids."""
    answer = trial.cloud.compute.get("/os-hypervisors/detail", microversion=microversion)
    return list(answer.json()["hypervisors"])
