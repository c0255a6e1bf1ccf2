# SPDX-License-Identifier: Apache-2.0
"""Every command, with something it needs away: text, time and exit status.

What is found is the table in the documents. With ``NODB_WRITE_TABLES`` set it
is written there, otherwise compared.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import testtools

from nova_nodb_scheduler.cmd.framework import guard
from nova_nodb_scheduler.testing import servers
from tests.functional.cmd import commands, deployment, troubles
from tests.functional.nova_adapter import rabbitmq

TABLE = pathlib.Path(__file__).parents[3] / "doc/source/user/commands-failures.inc"
MOST_SECONDS = 10.0

_CHECK = "nova-nodb-status upgrade check"
_SIMULATE = "nova-nodb-simulate"
_EXPLAIN = f"explain --flavor {deployment.FLAVOR}"
_LOCAL = ("db sync", "db version", "db check")
_BUS = ("status", "host list", "host show h1", "namespace list", _EXPLAIN, _CHECK)
_NOVA = ("import", "compare")
_NODES = ("compute-nodes status", "compute-nodes retire --dry-run")
_MANY = (
    *_LOCAL,
    *_NOVA,
    "mirror import",
    "allocations audit",
    *_BUS,
    *_NODES,
    "synchronizer move --to memcached",
    "synchronizer new-epoch --yes",
)
#: Of what the back end is away for: host list asks schedulers alone.
_BACKEND = tuple(name for name in _MANY if name not in _BUS[1:5] and name != "allocations audit")
#: Those that have a document in which their verdict stands.
_JSON = {*_NOVA, "status", _CHECK}


@attrs.frozen(kw_only=True)
class Trouble:
    """Something that is away, and the commands that meet it.

    :param config: the file; None for none at all
    """

    title: str
    config: str | None
    commands: Sequence[str]
    without_rights: bool = False
    placement: str = ""
    simulated: str = ""


class FailuresTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.silent = self.useFixture(troubles.SilentPeer()).port
        self.hole = self.useFixture(troubles.BlackHole()).port
        self.closed = troubles.closed_port()

    def test_every_command_ends_in_time_and_names_what_is_away(self):
        bus = self.useFixture(rabbitmq.RabbitMQ())
        self.made = self.useFixture(deployment.Deployment(bus.url))
        found = self.run_all(
            [*self.without_configuration(), *self.without_bus(bus), *self.without_backend()]
            + self.without_databases()
        )
        indecent = {name: why for name, ended in found.items() if (why := indecency(name, ended))}
        # Cases end in another order each time.
        text = table(self.told({name: found[name] for name in self.asked}))
        if os.environ.get("NODB_WRITE_TABLES"):
            TABLE.write_text(text)
        self.assertEqual({}, indecent)
        self.assertEqual(TABLE.read_text(), text)

    # -- what is away -------------------------------------------------------------

    def without_configuration(self) -> list[Trouble]:
        broken = self.made.directory / "broken.conf"
        broken.write_text("[DEFAULT\ntransport_url\n")
        closed = pathlib.Path(self.made.write("unreadable"))
        closed.chmod(0)
        wrong = self.made.write("wrong", {"nodb_scheduler": {"synchronizer": "mysql"}})
        return [
            Trouble(title="There is no nova.conf", config=None, commands=_MANY),
            Trouble(title="nova.conf is broken", config=str(broken), commands=_MANY),
            Trouble(
                title="nova.conf may not be read",
                config=str(closed),
                commands=_MANY,
                without_rights=True,
            ),
            Trouble(
                title="An option names what there is not", config=wrong, commands=("status", _CHECK)
            ),
        ]

    def without_bus(self, bus: rabbitmq.RabbitMQ) -> list[Trouble]:
        addresses = {
            "Nobody listens on the message bus's port": f"guest:guest@127.0.0.1:{self.closed}",
            "The message bus takes connections and is silent": (
                f"guest:guest@127.0.0.1:{self.silent}"
            ),
            "Packets to the message bus are lost": f"guest:guest@127.0.0.1:{self.hole}",
            "The message bus's name is unknown": "guest:guest@bus.invalid:5672",
            "The message bus refuses the password": f"guest:wrong@{bus.server.address}",
            "The bus works, and no scheduler answers": f"guest:guest@{bus.server.address}",
        }
        return [
            Trouble(
                title=title,
                config=self.made.write(
                    f"bus{n}", {"DEFAULT": {"transport_url": f"rabbit://{address}/"}}
                ),
                # The others do not use it: one of the addresses shows that.
                commands=(*_LOCAL, *_NOVA, *_BUS) if n == 1 else _BUS,
            )
            for n, (title, address) in enumerate(addresses.items())
        ]

    def without_backend(self) -> list[Trouble]:
        database = self.useFixture(servers.MariaDB())
        name = database.url.rpartition("/")[2].partition("?")[0]
        server: Any = database.server
        for user, rights in (("norights", None), ("reader", f"SELECT ON {name}.*")):
            server.execute(
                f"CREATE USER IF NOT EXISTS {user}@'127.0.0.1' IDENTIFIED BY 'hush-hush'"
            )
            if rights:
                server.execute(f"GRANT {rights} TO {user}@'127.0.0.1'")

        def url(user: str, port: int) -> str:
            return f"mysql+pymysql://{user}:hush-hush@127.0.0.1:{port}/{name}"

        found = []
        for n, (title, connection, some) in enumerate(
            (
                ("The back end's port is closed (MariaDB)", url("u", self.closed), _BACKEND),
                (
                    "The back end takes connections and is silent (MariaDB)",
                    url("u", self.silent),
                    _BACKEND,
                ),
                (
                    "The back end's user has no rights (MariaDB)",
                    url("norights", server.port),
                    _BACKEND,
                ),
                (
                    "The back end's user may only read (MariaDB)",
                    url("reader", server.port),
                    ("db sync", "import"),
                ),
            )
        ):
            path = self.made.write(f"backend{n}", {"nodb_sqlalchemy": {"connection": connection}})
            found.append(Trouble(title=title, config=path, commands=some, simulated=connection))
        for driver, group, option in (
            ("redis", "nodb_redis", "url"),
            ("memcached", "nodb_memcached", "servers"),
            ("etcd", "nodb_etcd", "endpoints"),
        ):
            for what, port in (("closed", self.closed), ("silent", self.silent)):
                address = f"127.0.0.1:{port}"
                value = {"redis": f"redis://{address}/0", "etcd": f"http://{address}"}.get(
                    driver, address
                )
                path = self.made.write(
                    f"{driver}-{what}",
                    {"nodb_scheduler": {"synchronizer": driver}, group: {option: value}},
                )
                found.append(
                    Trouble(
                        title=f"The back end is {what} ({driver})",
                        config=path,
                        commands=("status", "import", _CHECK),
                    )
                )
        return found

    def without_databases(self) -> list[Trouble]:
        found = []
        for what, port in (("closed", self.closed), ("silent", self.silent)):
            url = f"mysql+pymysql://u:hush-hush@127.0.0.1:{port}/nova"
            found += [
                Trouble(
                    title=f"Nova's API database is {what}",
                    config=self.made.write(f"api-{what}", {"api_database": {"connection": url}}),
                    commands=(*_NOVA, "allocations audit", _EXPLAIN, *_NODES, _CHECK),
                ),
                Trouble(
                    title=f"A cell's database is {what}",
                    config=self.made.write(
                        f"cell-{what}",
                        {"api_database": {"connection": self.made.api_with_cell(url)}},
                    ),
                    commands=(*_NOVA, *_NODES, _CHECK),
                ),
                Trouble(
                    title=f"Placement is {what}",
                    config=self.made.write(
                        f"placement-{what}",
                        {"placement": {"endpoint_override": f"http://127.0.0.1:{port}/placement"}},
                    ),
                    commands=("allocations audit",),
                ),
                Trouble(
                    title=f"Placement's database is {what}",
                    config=self.made.write(f"placement-database-{what}"),
                    commands=("mirror import",),
                    placement=url,
                ),
            ]
        return found

    # -- running them -------------------------------------------------------------

    def run_all(self, every: Sequence[Trouble]) -> dict[str, commands.Ended]:
        home = self.made.directory / "home"
        home.mkdir()
        cases = []
        for trouble in every:
            named = [] if trouble.config is None else ["--config-file", trouble.config]
            for name in trouble.commands:
                program, arguments = "nova-nodb-manage", [*named, *name.split()]
                if name == _CHECK:
                    program, arguments = "nova-nodb-status", [*named, *name.split()[1:]]
                if name in _JSON:
                    arguments.append("--json")
                cases.append(
                    commands.Case(
                        name=f"{trouble.title}|{name}",
                        program=program,
                        arguments=arguments,
                        directory=str(home),
                        environment={
                            "HOME": str(home),
                            "NODB_PLACEMENT_CONNECTION": trouble.placement or self.made.placement,
                        },
                        without_rights=trouble.without_rights,
                    )
                )
            if trouble.simulated:
                option = f"connection={trouble.simulated}"
                arguments = ["--quiet", "--synchronizer", "sqlalchemy", "--option", option]
                cases.append(
                    commands.Case(
                        name=f"{trouble.title}|{_SIMULATE}",
                        program=_SIMULATE,
                        arguments=arguments,
                        directory=str(home),
                    )
                )
        self.asked = [case.name for case in cases]
        return commands.run(cases)

    # -- what they said -----------------------------------------------------------

    def told(self, found: Mapping[str, commands.Ended]) -> list[tuple[str, str, int, str]]:
        return [
            (*name.split("|"), ended.status or 0, self.neutral(said(name.split("|")[1], ended)))  # type: ignore[misc]
            for name, ended in found.items()
        ]

    def neutral(self, text: str) -> str:
        """Leave out what differs from run to run."""
        home = str(self.made.directory / "home")
        text = text.replace(home, "~").replace(str(self.made.directory), "/etc/nova")
        text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
        text = re.sub(r"nodb_[0-9a-f]{12}", "nova_nodb", text)
        # Less of its time is left to who comes late.
        text = re.sub(r"no answer within [\d.]+ s", "no answer within N s", text)
        text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
        return re.sub(r"port=\d{4,}", "port=PORT", text)


def indecency(name: str, ended: commands.Ended) -> str:
    """Say what is not as it should be in how a command ended; empty for nothing."""
    everything = ended.stdout + ended.stderr
    lines = told_lines(ended)
    if ended.status is None:
        return "it was killed"
    if ended.seconds >= MOST_SECONDS:
        return f"it took {ended.seconds:.1f} s"
    for text in ("Traceback", "hush-hush"):
        if text in everything:
            return f"{text} in {everything}"
    failed = guard.CHECK_FAILED if name.endswith(_CHECK) else guard.FAILED
    expected = 1 if ended.status == failed else 0
    if len(lines) != expected:
        return f"status {ended.status} with {ended.stderr!r}"
    if ended.status == failed and ended.stdout:
        return f"status {ended.status} with {ended.stdout!r}"
    return ""


def told_lines(ended: commands.Ended) -> list[str]:
    """Return what stands on standard error, but for what is told while one waits."""
    return [
        line
        for line in ended.stderr.splitlines()
        if line.strip() and not line.startswith(("Back end ", "warning: "))
    ]


def said(command: str, ended: commands.Ended) -> str:
    """Return the error's line, or the verdict's."""
    lines = told_lines(ended)
    if lines:
        return lines[0].partition(": ")[2]
    if command not in _JSON or not ended.stdout:
        return ""
    document = json.loads(ended.stdout)
    if command == "status":
        return " ".join(document["problems"])
    if command == "import":
        return " ".join(each["outcome"] for each in document if each["failed"])
    if command == _CHECK:
        return " ".join(
            f"{each['check']}: {each['details']}"
            for each in document["checks"]
            if each["result"] == 2 and not each["details"].startswith("Not known while")
        )
    return ""


def table(rows: Iterable[tuple[str, str, int, str]]) -> str:
    """Return reStructuredText; commands that end alike share a row."""
    alike: dict[tuple[str, int, str], list[str]] = {}
    for trouble, command, status, text in rows:
        alike.setdefault((trouble, status, text), []).append(command)
    lines = [
        ".. What tests/functional/cmd/test_failures.py found; it compares, do not edit.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: 20 25 5 50",
        "",
        "   * - What is away",
        "     - Command",
        "     - Exit",
        "     - What it says",
    ]
    former = ""
    for (trouble, status, text), names in alike.items():
        shown = "" if trouble == former else trouble
        former = trouble
        quoted = f"``{text}``" if text else ("it works" if status == 0 else "its verdict")
        lines += [
            f"   * - {shown}".rstrip(),
            f"     - {', '.join(f'``{name}``' for name in names)}",
            f"     - {status}",
            f"     - {quoted}",
        ]
    return "\n".join(lines) + "\n"
