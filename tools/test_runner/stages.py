# SPDX-License-Identifier: Apache-2.0
"""The stages: what each runs, when, for how long at most, and what it needs of the machine."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from tools.test_runner import trees, work


class When(enum.Enum):
    """By which way of calling a stage is run; each includes those before it."""

    FAST = "fast"
    CI = "ci"
    ALL = "all"


@dataclasses.dataclass(frozen=True)
class Stage:
    """One line of the table."""

    name: str
    when: When
    limit_seconds: int
    what: str
    work: work.Work
    #: The part of the machine that it keeps busy: it begins when so much is free.
    share: float = 1.0
    #: Test processes at a time, for each processor; one for each if it is the only stage of a run.
    workers: float = 1.0


# Whole suites on a cluster of two nodes take minutes: here its claims stand for them.
_GALERA = r"\.(test_galera_faults\.|test_galera\.TestConformance)"
# What goes through the same code as other tests of CI's, its twins:
# TestClaimsMariaDB: test_galera.TestClaimsGalera, the same claims, mode and dialect by two nodes;
# TestClaimsSQLite: test_sqlalchemy_sequencer.TestClaimsPostgreSQL, the same claims and mode, and
# test_sqlalchemy.TestConformanceSQLiteSequencer, the same mode and dialect, with races;
# TestConformanceMariaDBSequencer: test_sqlalchemy_sequencer.TestFaultsMariaDB, the same mode and
# dialect, and the same tests by TestConformancePostgreSQLSequencer and TestConformanceMariaDB;
# TestConformancePostgreSQL: test_sqlalchemy_faults.TestFaultsPostgreSQL, the same mode and dialect,
# and the same tests by TestConformancePostgreSQLSequencer and TestConformanceMariaDB.
# (test_sqlalchemy_faults.TestFaultsMariaDB has none: there alone a write is one statement.)
# TestFaultsPostgreSQL of test_sqlalchemy_sequencer: TestFaultsMariaDB there, the same faults and
# mode, and test_sqlalchemy_faults.TestFaultsPostgreSQL, the same faults and dialect;
# TestMariaDBToSQLite, TestEtcdToRedis of test_migrator: TestMariaDBToEtcd, TestSQLiteToMemcached,
# the same migrator, which knows drivers by their contract alone.
_TWINS = (
    r"\.test_sqlalchemy_sequencer\.Test(Claims(MariaDB|SQLite)|FaultsPostgreSQL)\."
    r"|\.test_migrator\.Test(MariaDBToSQLite|EtcdToRedis)\."
    r"|\.test_sqlalchemy\.TestConformance(MariaDBSequencer|PostgreSQL)\."
)
# What holds for eight writers at once holds for fewer.
_FEWER_WRITERS = r"\.test_races\..*\.test_(two|four)_writers_"

# Nova's services in processes of their own, which a stage of its own runs.
_WAITING = r"\.nova_adapter\.waiting\."
# What retires and restores compute nodes, with processes that take seconds of processor each: CI
# does it on MariaDB, and the statements of other dialects by what reads and serves nodes there.
_NODE_TRANSFERS = r"\.test_(node|disturbed)_transfer\.On(SQLite|PostgreSQL)Test\."
# Churn, which node_churn has.
_CHURN = r"\.churn\.test_churn\."

# A Keystone takes half a minute to lay down, and Nova's services ten seconds to start.
_DEAR_ZAQAR = r"\.(test_keystone\.|test_waking_events\.ConductorTest\.)"

_LINT = work.Checks(
    (
        work.Check("ruff", ("ruff", "check", ".")),
        work.Check(
            "hacking",
            ("python", "-m", "tools.hacking_rules", "nova_nodb_scheduler", "tests", "tools"),
        ),
        work.Check("layers", ("lint-imports", "--no-cache")),
        work.Check("mypy", ("mypy",)),
        work.Check("bashate", trees.bashate),
        work.Check(
            "doc8",
            ("doc8", "README.rst", "CONTRIBUTING.rst", "doc/source", "releasenotes/source"),
        ),
    )
)

# Most stages wait as long as they compute, so three go on at a time on two processors; those
# that wait most count half. What takes longest begins first. In the order of the table.
_THIRD, _SIXTH = 1 / 3, 1 / 6

STAGES = (
    Stage(
        "nova",
        When.CI,
        2400,
        "the named selection of Nova's own functional tests, with the plugin",
        work.Nova("ci"),
        share=_THIRD,
        workers=1.0,
    ),
    Stage(
        "conformance",
        When.CI,
        2400,
        "tests/functional/synchronizer: every driver against its real server",
        work.Tests("functional/synchronizer", but=f"{_GALERA}|{_TWINS}", again=True),
        share=_THIRD,
        workers=1.5,
    ),
    Stage(
        "functional",
        When.CI,
        2400,
        "tests/functional/nova_adapter: Nova in process, real back ends",
        work.Tests(
            "functional/nova_adapter", but=f"{_WAITING}|{_NODE_TRANSFERS}|{_CHURN}", again=True
        ),
        share=_THIRD,
        workers=1.5,
    ),
    Stage(
        "waiting",
        When.CI,
        2400,
        "tests/functional/nova_adapter/waiting: requests that wait, and who may die meanwhile",
        work.Tests("functional/nova_adapter/waiting", again=True),
        share=_THIRD,
        workers=1.5,
    ),
    Stage(
        "unit",
        When.FAST,
        1800,
        "tests/unit: unit and property tests, no server",
        work.Tests("unit"),
        share=_THIRD,
        workers=1.0,
    ),
    Stage(
        "placement",
        When.CI,
        1200,
        "tests/functional/placement_adapter: Placement guarded, and processes of it that race",
        work.Tests("functional/placement_adapter", but=_FEWER_WRITERS, again=True),
        share=_SIXTH,
        workers=1.0,
    ),
    Stage(
        "simulator",
        When.CI,
        900,
        "tests/functional/simulator: whole simulations, in processes of their own",
        # Apart from tests that have Nova patch sockets and threads in their process.
        work.Tests("functional/simulator", again=True),
        share=_SIXTH,
        workers=0.5,
    ),
    Stage(
        "instruments",
        When.CI,
        300,
        "tests/functional/chaos: what the judge of random faults sees between its samples",
        work.Tests("functional/chaos", again=True),
        share=_SIXTH,
        workers=0.5,
    ),
    Stage(
        "alerts",
        When.CI,
        900,
        "tests/functional/monitoring: faults fire alerts in a real Prometheus; the board",
        work.Tests("functional/monitoring", again=True),
        # They wait for scrapes most of the time; each process imports Nova, as does who lists them.
        share=_SIXTH,
        workers=1.0,
    ),
    Stage(
        "zaqar",
        When.CI,
        900,
        "tests/functional/zaqar: events to projects through a real Zaqar",
        work.Tests(
            "functional/zaqar",
            but=_DEAR_ZAQAR,
            again=True,
            beside=work.Beside(
                "zaqar", "tests/functional/zaqar/requirements.txt", "NODB_ZAQAR_VENV"
            ),
        ),
        # They wait for servers that start, and for ends of time.
        share=_SIXTH,
        workers=0.5,
    ),
    Stage(
        "engine_faults",
        When.CI,
        900,
        "tests/engine_faults: a short selection of faults of engines and schedulers",
        work.EngineFaults(("--short",)),
        share=_SIXTH,
    ),
    Stage(
        "differential",
        When.CI,
        900,
        "tests/differential: decisions over made clouds against Nova and Placement",
        work.Tests("differential"),
        share=_THIRD,
        workers=0.5,
    ),
    Stage(
        "lint",
        When.FAST,
        600,
        "ruff, hacking, layers, types, shell, documentation sources",
        _LINT,
        share=_THIRD,
    ),
    Stage(
        "docs",
        When.CI,
        600,
        "documents and release notes with -W, the sample of the options",
        trees.DOCUMENTS,
        share=_THIRD,
    ),
    Stage(
        "packaging",
        When.CI,
        600,
        "build the wheel, install it alone, load its entry points",
        trees.PACKAGING,
        share=_THIRD,
    ),
    Stage(
        "chaos",
        When.CI,
        900,
        "a round of random faults on a real control plane: the last seed that found something",
        work.Script(("tools/chaos.sh", "--short")),
        # Services that start and clients that wait leave a third of the processors, and more: it
        # begins when one other stage is left, so that neither is alone at the end.
        share=2 * _THIRD,
    ),
    # Bounds of seconds are looked at there: nothing runs beside them.
    Stage(
        "commands",
        When.CI,
        600,
        "tests/functional/cmd: commands end in time, by name, with what they need away",
        work.Tests("functional/cmd", again=True),
        # Each test has processes of its own, and waits for them most of the time.
        workers=1.0,
    ),
    Stage(
        "galera",
        When.ALL,
        3600,
        "the rest of the conformance suite and the faults on a Galera cluster of two nodes",
        work.Tests("functional/synchronizer", only=_GALERA, again=True),
    ),
    Stage(
        "twins",
        When.ALL,
        1200,
        "the tests of tests/functional/synchronizer that CI leaves to their twins",
        work.Tests("functional/synchronizer", only=_TWINS, again=True),
    ),
    Stage(
        "few_writers",
        When.ALL,
        1200,
        "the races of tests/functional/placement_adapter with two and four writers",
        work.Tests("functional/placement_adapter", only=_FEWER_WRITERS, again=True),
    ),
    Stage(
        "zaqar_all",
        When.ALL,
        1800,
        "the tests of tests/functional/zaqar with a Keystone, and with Nova's own conductor",
        work.Tests(
            "functional/zaqar",
            only=_DEAR_ZAQAR,
            again=True,
            beside=work.Beside(
                "zaqar-keystone",
                "tests/functional/zaqar/requirements-keystone.txt",
                "NODB_ZAQAR_VENV",
            ),
        ),
        workers=0.5,
    ),
    Stage(
        "node_transfers",
        When.ALL,
        3600,
        "compute nodes retired and restored, killed and disturbed, on SQLite and PostgreSQL",
        work.Tests("functional/nova_adapter", only=_NODE_TRANSFERS, again=True),
    ),
    Stage(
        "node_sequences",
        When.ALL,
        10800,
        "10,000 sequences of calls on compute nodes: records answer as stock Nova does",
        work.Tests(
            "functional/nova_adapter",
            only=r"\.sequences\.test_sequences\.SequencesTest\.",
            variables={"NODB_PROPERTY_EXAMPLES": "10000"},
        ),
    ),
    Stage(
        "node_churn",
        When.ALL,
        7200,
        "ten minutes of churn between retire and restore, on each database; stock Nova compares",
        work.Tests(
            "functional/nova_adapter",
            only=_CHURN,
            variables={"NODB_CHURN_SECONDS": "600"},
        ),
    ),
    Stage(
        "nova_all",
        When.ALL,
        10800,
        "all of Nova's selection, with the plugin",
        work.Nova("issue"),
    ),
    Stage(
        "nova_whole",
        When.ALL,
        86400,
        "Nova's functional tests whole, but for samples, with the plugin",
        work.Nova("whole"),
    ),
    Stage(
        "nova_endings",
        When.ALL,
        3600,
        "each way in which a claim ends, by Nova's own tests with the plugin",
        work.Nova("endings"),
    ),
    Stage(
        "nova_store",
        When.ALL,
        7200,
        "Nova's tests of compute nodes, answered by records, the table behind them",
        work.Nova("nodes", compute_nodes="store"),
    ),
    Stage(
        "nova_retired",
        When.ALL,
        7200,
        "Nova's tests of compute nodes, by records, the table away, heartbeats stored, too",
        work.Nova("nodes", compute_nodes="retired", heartbeats="both"),
    ),
    Stage("nova31", When.ALL, 3600, "smoke selection of Nova 31", work.Nova("smoke", "31")),
    Stage("nova32", When.ALL, 3600, "smoke selection of Nova 32", work.Nova("smoke", "32")),
    Stage("nova33", When.ALL, 3600, "smoke selection of Nova 33", work.Nova("smoke", "33")),
    Stage(
        "faults",
        When.ALL,
        5400,
        "faults on a real control plane",
        work.Script(("tools/faults.sh",)),
    ),
    Stage(
        "faults_retired",
        When.ALL,
        5400,
        "faults on a real control plane without Nova's tables of compute nodes",
        work.Script(("tools/faults.sh", "--retired")),
    ),
    Stage(
        "engine_faults_all",
        When.ALL,
        10800,
        "every fault on every engine, a kill and a freeze at each step",
        work.EngineFaults(("--file",)),
    ),
    Stage(
        "capacity",
        When.ALL,
        3600,
        "schedulers race for little room on a real control plane",
        work.Script(("tools/capacity.sh", "--runs", "3", "--schedulers", "4")),
    ),
    Stage(
        "chaos_all",
        When.ALL,
        21600,
        "random faults on each back end: every seed that found something, and three more",
        work.ScriptForEach(
            ("tools/chaos.sh", "--backend"),
            ("sqlalchemy", "sqlite", "memcached", "redis", "etcd"),
            ("--replay", "--rounds", "3"),
        ),
    ),
    Stage(
        "tempest",
        When.ALL,
        9000,
        "tempest.api.compute against a real control plane: plugin, stock, compute_nodes retired",
        work.Tempest(),
    ),
)


def selected(when: When, table: Sequence[Stage] = STAGES) -> tuple[Stage, ...]:
    """Return the stages of a way of calling, in the order of the table."""
    ways = list(When)
    return tuple(stage for stage in table if ways.index(stage.when) <= ways.index(when))
