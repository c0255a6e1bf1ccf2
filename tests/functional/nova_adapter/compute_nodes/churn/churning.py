# SPDX-License-Identifier: Apache-2.0
"""Calls that are drawn and told to two processes at a time, and what their answers mean.

The two calls of a round touch nothing in common, or race on purpose: for a name, for columns of
one row, for a node that comes back while it is archived. Then the answers say who won.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tests.functional.nova_adapter.compute_nodes import nova_table
from tests.functional.nova_adapter.compute_nodes.churn import ledger as ledgers

_PROGRAM = pathlib.Path(__file__).with_name("nova_calls.py")
Call = tuple[Any, ...]
Answer = Mapping[str, Any]

_HOSTS = [f"h{number}" for number in range(40)]
#: About so many nodes live at a time.
_LIVING = 60
#: Of what an archive and a purge take, so rarely.
_WEIGHTS = {
    "save": 30,
    "create": 8,
    "destroy": 8,
    "undelete": 6,
    "recreate": 6,
    "move": 8,
    "duplicate": 2,
    "add_service": 3,
    "destroy_service": 2,
    "add_device": 3,
    "remove_device": 3,
}
_RACES = {"race_save": 6, "race_create": 3}
_ARCHIVE_EACH, _PURGE_EACH = 120, 5
#: More than what stock Nova creates behind a table whose ids do not go on could hide.
_NEW_IDS = 5


class Process:
    """A process of Nova's that carries out calls."""

    def __init__(self, conf_file: pathlib.Path) -> None:
        self._errors = conf_file.with_suffix(".stderr").open("a")
        self._process = subprocess.Popen(
            # Not in front of what is installed: that directory's names are no modules.
            [sys.executable, "-P", str(_PROGRAM), str(conf_file)],
            env={**os.environ, "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.described = self._line()

    def ask(self, call: Call) -> None:
        assert self._process.stdin is not None
        print(json.dumps(call), file=self._process.stdin, flush=True)

    def answer(self) -> Answer:
        return self._line()

    def call(self, *call: Any) -> Any:
        """Return what a call gives that may not fail."""
        self.ask(call)
        answer = self.answer()
        if answer["error"]:
            raise AssertionError((call, answer))
        return answer["value"]

    def end(self) -> None:
        """Have it end by itself."""
        self._process.communicate(timeout=60)
        self._errors.close()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended: {self._process.wait()}")
        return json.loads(line)


@attrs.frozen
class Action:
    """A call, what else may not be touched meanwhile, and what notes its answer."""

    call: Call
    touches: frozenset[str]
    note: Callable[[Answer, ledgers.Span], None]


_DEVICE_CALLS = ("add_device", "remove_device")
#: By oslo.db's name.
_DEADLOCK = "DBDeadlock"


class Churning:
    """One thread that tells processes what to do.

    :param ledger: where it notes what they answered
    :param gives_no_id_again: whether the database gives no id of a purged row again. One that
        does has Nova's own archiving of devices fail on those that stand there already, so that
        they are purged before each
    :param has_writers: whether several may write to the database at once. One where they may not
        refuses Nova's calls at such a moment, with the plugin or without, so that they are told
        one after the other
    :ivar counts: of what was told, by name
    """

    def __init__(
        self,
        rng: random.Random,
        ledger: ledgers.Ledger,
        *,
        gives_no_id_again: bool = True,
        has_writers: bool = True,
    ) -> None:
        self._rng, self._ledger = rng, ledger
        self._gives_no_id_again, self._has_writers = gives_no_id_again, has_writers
        self._numbers = itertools.count(1)
        self._rounds = itertools.count(1)
        self.counts: collections.Counter[str] = collections.Counter()

    def go(self, processes: Sequence[Process], seconds: float) -> None:
        """Tell two processes for so long, and until some nodes more were given ids."""
        end, enough = time.monotonic() + seconds, self._ledger.highest + _NEW_IDS
        while time.monotonic() < end or self._ledger.highest < enough:
            number = next(self._rounds)
            if number % _ARCHIVE_EACH == 0:
                if not self._gives_no_id_again:
                    self._purge(processes)
                self._archive(processes)
                if number % (_ARCHIVE_EACH * _PURGE_EACH) == 0:
                    self._purge(processes)
                self.compare(processes)
                continue
            race = self._drawn({"none": 91, **_RACES})
            if race != "none":
                getattr(self, f"_{race}")(processes)
            else:
                self._pair(processes)

    def go_alone(self, process: Process, rounds: int) -> None:
        """Tell one process some calls, one by one."""
        for _each in range(rounds):
            action = self._action(frozenset())
            if action is not None:
                answers, span = self._told([process], [action.call])
                action.note(answers[0], span)

    def compare(self, processes: Sequence[Process]) -> None:
        """Have each process read all rows, and the archive, as they were acknowledged."""
        for process in processes:
            found = self._ledger.differences(process.call("rows"))
            assert not found, found
        archived = {
            number: uuid for number, uuid, _deleted in processes[0].call("others")["archived"]
        }
        assert archived == self._ledger.archived, (archived, self._ledger.archived)
        self.counts["compared"] += 1

    # -- rounds -----------------------------------------------------------------------

    def _told(
        self, processes: Sequence[Process], calls: Sequence[Call]
    ) -> tuple[list[Answer], ledgers.Span]:
        begun = _now()
        self._ledger.begin_round()
        answers = []
        for process, call in zip(processes, calls, strict=True):
            process.ask(call)
            self.counts[call[0]] += 1
            if not self._has_writers:
                answers.append(process.answer())
        if self._has_writers:
            answers = [process.answer() for process in processes]
            self._tell_devices_again(processes, calls, answers)
        return answers, (begun, _now())

    def _tell_devices_again(
        self, processes: Sequence[Process], calls: Sequence[Call], answers: list[Answer]
    ) -> None:
        """Repeat calls on devices that a database refused as one of a deadlock: as nova-compute.

        The table is Nova's own, with the plugin or without, and Nova repeats no such call itself.
        """
        for place, (process, call) in enumerate(zip(processes, calls, strict=True)):
            if call[0] in _DEVICE_CALLS and answers[place]["error"] == _DEADLOCK:
                process.ask(call)
                answers[place] = process.answer()
                self.counts["devices told again behind a deadlock"] += 1

    def _in_any_order(self, processes: Sequence[Process]) -> list[Process]:
        return self._rng.sample(list(processes), len(processes))

    def _pair(self, processes: Sequence[Process]) -> None:
        actions: list[Action] = []
        touched: frozenset[str] = frozenset()
        while len(actions) < len(processes):
            action = self._action(touched)
            if action is not None:
                actions.append(action)
                touched |= action.touches
        answers, span = self._told(
            self._in_any_order(processes), [action.call for action in actions]
        )
        for action, answer in zip(actions, answers, strict=True):
            action.note(answer, span)

    def _race_save(self, processes: Sequence[Process]) -> None:
        """Save other columns of one row at a time: both stand."""
        row = self._rng.choice(self._ledger.live())
        values = [{"vcpus_used": self._rng.randrange(99)}, {"mapped": self._rng.randrange(2)}]
        calls = [("save", row["uuid"], each) for each in values]
        answers, _span = self._told(self._in_any_order(processes), calls)
        told = [_value(answer) for answer in answers]
        self._ledger.saved(row["id"], {**values[0], **values[1]}, *told)
        self.counts["races"] += 1

    def _race_create(self, processes: Sequence[Process]) -> None:
        """Create two nodes of one name: one is refused."""
        first = self.new_node(self._rng.choice(_HOSTS))
        second = {**first, "uuid": self._uuid()}
        answers, _span = self._told(
            self._in_any_order(processes), [("create", first), ("create", second)]
        )
        refused = [answer["error"] for answer in answers if answer["error"]]
        assert refused in (["DuplicateRecord"], ["DBDuplicateEntry"]), answers
        for values, answer in zip((first, second), answers, strict=True):
            if not answer["error"]:
                self._ledger.created(values, answer["value"])
        self.counts["races"] += 1

    def _archive(self, processes: Sequence[Process]) -> None:
        """Archive while a deleted node is created again: it has its id, or is archived."""
        gone = self._ledger.archivable()
        # One of them, for the race's sake.
        back = self._rng.choice([None, *gone]) if gone else None
        calls: list[Call] = [("archive",)]
        values: dict[str, Any] = {}
        if back is not None:
            values = {**self._report(), **self._names(self._ledger.nodes[back])}
            calls.append(("create", values))
        answers, _span = self._told(self._in_any_order(processes)[: len(calls)], calls)
        count = _value(answers[0])
        if back is not None:
            told = _value(answers[1])
            if told["id"] == back:
                del gone[back]
            else:
                # Rows of one uuid are told apart by their ids.
                self.counts["archived before it came back"] += 1
        assert count == len(gone), (count, gone, answers)
        self._ledger.archive(gone)
        if back is not None:
            self._ledger.created(values, told)
            self.counts["races"] += 1

    def _purge(self, processes: Sequence[Process]) -> None:
        [answer], _span = self._told(processes[:1], [("purge",)])
        assert _value(answer) >= len(self._ledger.archived), answer
        self._ledger.archived.clear()

    # -- single calls -------------------------------------------------------------------

    def _action(self, touched: frozenset[str]) -> Action | None:
        """Draw a call that touches nothing of what another does; None if it would."""
        name = self._drawn(_WEIGHTS)
        living = len(self._ledger.live())
        if name == "create" and living > _LIVING:
            name = "destroy"
        elif name.startswith("destroy") and living < _LIVING // 2:
            name = "create"
        made: Action | None = getattr(self, f"_{name}")()
        return None if made is None or made.touches & touched else made

    def _drawn(self, weights: Mapping[str, int]) -> str:
        return self._rng.choices(list(weights), list(weights.values()))[0]

    def _row(self, rows: Sequence[ledgers.Row]) -> ledgers.Row | None:
        return self._rng.choice(rows) if rows else None

    def _create(self) -> Action:
        host = self._rng.choice(_HOSTS)
        values = self.new_node(host)

        def note(answer: Answer, _span: ledgers.Span) -> None:
            self._ledger.created(values, _value(answer))

        return Action(("create", values), frozenset([host]) | _of_service(values), note)

    def _save(self, **more: Any) -> Action | None:
        row = self._row(self._ledger.live())
        if row is None:
            return None
        report = self._report()
        names = self._rng.sample(sorted(report), self._rng.randint(1, 4))
        values = {**{name: report[name] for name in names}, **more}

        def note(answer: Answer, _span: ledgers.Span) -> None:
            self._ledger.saved(row["id"], values, _value(answer))

        return Action(
            ("save", row["uuid"], values), _of(row, *more.values()) | _of_service(values), note
        )

    def _move(self) -> Action | None:
        return self._save(host=self._rng.choice(_HOSTS))

    def _destroy(self) -> Action | None:
        row = self._row(self._ledger.live())
        if row is None:
            return None

        def note(answer: Answer, span: ledgers.Span) -> None:
            assert _value(answer)["id"] == row["id"], answer
            self._ledger.destroyed(row["id"], span)

        return Action(("destroy", row["uuid"]), _of(row), note)

    def _undelete(self) -> Action | None:
        row = self._row(self._ledger.deleted())
        if row is None:
            return None

        def note(answer: Answer, _span: ledgers.Span) -> None:
            self._ledger.saved(row["id"], {}, _value(answer), deleted=0, deleted_at=None)

        return Action(("undelete", row["uuid"]), _of(row), note)

    def _recreate(self) -> Action | None:
        """Create a node again that was deleted: it keeps its id."""
        row = self._row(self._ledger.deleted())
        if row is None:
            return None
        values = {**self._report(), **self._names(row)}

        def note(answer: Answer, _span: ledgers.Span) -> None:
            assert _value(answer)["id"] == row["id"], (row, answer)
            self._ledger.created(values, _value(answer))

        return Action(("create", values), _of(row) | _of_service(values), note)

    def _duplicate(self) -> Action | None:
        """Create a node of a name that is taken: it is refused."""
        row = self._row(self._ledger.live())
        if row is None:
            return None
        values = {**self._report(), **self._names(row), "uuid": self._uuid()}

        def note(answer: Answer, _span: ledgers.Span) -> None:
            assert answer["error"] in ("DuplicateRecord", "DBDuplicateEntry"), (row, answer)

        return Action(("create", values), _of(row), note)

    def _add_service(self) -> Action | None:
        without = [host for host in _HOSTS if host not in self._ledger.services]
        if not without:
            return None
        host = self._rng.choice(without)

        def note(answer: Answer, _span: ledgers.Span) -> None:
            self._ledger.services[host] = _value(answer)

        return Action(("add_service", host), frozenset([host]), note)

    def _destroy_service(self) -> Action | None:
        """Delete a service with all nodes of it or of its host."""
        if not self._ledger.services:
            return None
        host, service_id = self._rng.choice(sorted(self._ledger.services.items()))
        rows = [
            row
            for row in self._ledger.live()
            if row["host"] == host or row.get("service_id") == service_id
        ]

        def note(answer: Answer, span: ledgers.Span) -> None:
            _value(answer)
            del self._ledger.services[host]
            for row in rows:
                self._ledger.destroyed(row["id"], span, mapped=0)

        touches = frozenset([host, f"service {service_id}"]).union(*map(_of, rows))
        return Action(("destroy_service", service_id), touches, note)

    def _add_device(self) -> Action | None:
        row = self._row(self._ledger.live())
        if row is None:
            return None
        address = f"{next(self._numbers) % 0xFFFF:04x}:00:00.0"

        def note(answer: Answer, _span: ledgers.Span) -> None:
            assert _value(answer), answer
            self._ledger.devices[row["id"], address] = False

        return Action(("add_device", row["id"], address), _of(row), note)

    def _remove_device(self) -> Action | None:
        present = [key for key, is_deleted in self._ledger.devices.items() if not is_deleted]
        # Some stay, on nodes that are deleted, too.
        if len(present) < 6:
            return None
        key = self._rng.choice(present)

        def note(answer: Answer, _span: ledgers.Span) -> None:
            _value(answer)
            self._ledger.devices[key] = True

        return Action(("remove_device", *key), _of(self._ledger.nodes[key[0]], key[1]), note)

    # -- values ---------------------------------------------------------------------------

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _names(self, row: ledgers.Row) -> dict[str, Any]:
        return {name: row[name] for name in ("uuid", "host", "hypervisor_hostname")}

    def new_node(self, host: str) -> dict[str, Any]:
        """Return what a node of a new uuid and a new name is created with."""
        return {
            **self._report(),
            "uuid": self._uuid(),
            "host": host,
            "hypervisor_hostname": f"n{next(self._numbers)}",
        }

    def _report(self) -> dict[str, Any]:
        """Return what a node reports of itself."""
        services = [None, *self._ledger.services.values()]
        return {
            **nova_table.NEEDED,
            "vcpus_used": self._rng.randrange(99),
            "memory_mb_used": self._rng.randrange(4096),
            "free_ram_mb": self._rng.randrange(-9, 4096),
            "free_disk_gb": self._rng.randrange(100),
            "disk_available_least": self._rng.choice([None, 7]),
            "running_vms": self._rng.randrange(9),
            "current_workload": self._rng.randrange(3),
            "host_ip": self._rng.choice(["192.0.2.7", "192.0.2.8"]),
            "stats": self._rng.choice([{}, {"io_workload": "1"}]),
            "service_id": self._rng.choice(services),
            **{
                f"{kind}_allocation_ratio": self._rng.choice([1.0, 1.5, 4.0])
                for kind in ("cpu", "ram", "disk")
            },
        }


def _of(row: ledgers.Row, *more: str) -> frozenset[str]:
    """Return what a call on a row touches: itself, its host, and its service."""
    return frozenset([row["uuid"], row["host"], *more]) | _of_service(row)


def _of_service(values: Mapping[str, Any]) -> frozenset[str]:
    """Return what a call touches that has a node belong to a service."""
    service_id = values.get("service_id")
    return frozenset() if service_id is None else frozenset([f"service {service_id}"])


def _value(answer: Answer) -> Any:
    assert not answer["error"], answer
    return answer["value"]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()
