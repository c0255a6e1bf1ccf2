# SPDX-License-Identifier: Apache-2.0
"""What the plugin stands on restarts, is emptied, or stalls."""

import signal
import time

from nova_nodb_scheduler.testing import proxy as tcp_proxy
from tests.faults import leftovers
from tests.faults import trial as trial_module
from tools.stack import configuration
from tools.stack import settings as stack_settings

_AWAY_SECONDS = 20.0
"""Longer than ``feed_bound_seconds`` and ``reporter_bound_seconds``."""
_STALL_SECONDS = 30.0
_NO_HOST = "No valid host was found"
_FORGOTTEN_SECONDS = 20.0
"""After ``reporter_bound_seconds`` (15 s) its cell was swept without it."""


def mariadb_restarted(trial: trial_module.Trial) -> None:
    """Nova's databases and the synchronizer's are away together, and come back together."""
    trial.boot("before")
    trial.fault(f"MariaDB is stopped for {_AWAY_SECONDS:.0f} s")
    trial.stack.stop("mariadb")
    time.sleep(_AWAY_SECONDS)
    trial.stack.start("mariadb")
    asked = trial.ask("during")
    trial.stack.wait_ready("mariadb")
    trial.heal("MariaDB answers")
    trial.wait_served()
    trial.settle(asked)
    trial.boot("after")


def rabbitmq_restarted(trial: trial_module.Trial) -> None:
    """States do not travel by RabbitMQ: heartbeats stop, and nothing is lost."""
    trial.boot("before")
    trial.fault("restart RabbitMQ")
    trial.stack.restart("rabbitmq")
    trial.heal("RabbitMQ answers")
    # Queues are gone with it: what is sent before the receiver has connected again is lost, in
    # stock Nova too. A scheduler that answers has its connection.
    trial.wait_served()
    trial.boot("after", 6)


def memcached_restarted(trial: trial_module.Trial) -> None:
    """Only tokens are kept there."""
    trial.boot("before")
    trial.fault("restart memcached")
    trial.stack.restart("memcached")
    trial.boot("during")
    trial.wait_served()
    trial.boot("after")


def placement_restarted(trial: trial_module.Trial) -> None:
    """Nobody can write an allocation: what is asked for finds no host, and leaves nothing."""
    trial.boot("before")
    trial.fault(f"Placement is stopped for {_AWAY_SECONDS:.0f} s")
    trial.stack.stop("placement")
    stopped = time.monotonic()
    asked = trial.ask("during", 4)
    time.sleep(max(0.0, stopped + _AWAY_SECONDS - time.monotonic()))
    trial.stack.start("placement")
    trial.stack.wait_ready("placement")
    trial.heal("Placement answers")
    trial.wait_served()
    trial.settle(asked, excused=_NO_HOST)
    trial.boot("after", 4)
    leftovers.expect_none(trial)


def placement_paused(trial: trial_module.Trial) -> None:
    """Requests wait for it, as with stock Nova, and go on."""
    trial.boot("before")
    trial.fault(f"SIGSTOP placement for {_STALL_SECONDS:.0f} s")
    trial.stack.kill("placement", signal.SIGSTOP)
    stopped = time.monotonic()
    asked = trial.ask("during", 4)
    time.sleep(max(0.0, stopped + _STALL_SECONDS - time.monotonic()))
    trial.stack.kill("placement", signal.SIGCONT)
    trial.heal("Placement goes on")
    trial.wait_served()
    trial.settle(asked)
    trial.boot("after", 4)
    leftovers.expect_none(trial)


def tables_emptied(trial: trial_module.Trial) -> None:
    """A new epoch: every cell is cold until it is swept, and read from its database meanwhile."""
    trial.boot("before")
    names = tables(trial)
    trial.fault(f"DELETE FROM {', '.join(names)}")
    for name in names:
        empty(trial, name)
    asked = trial.ask("during", 4)
    trial.wait_noticed(trial.stack.settings.cell_names[0], 30.0)
    trial.wait_served()
    trial.settle(asked)
    trial.boot("after")


def one_back_end_stalls(trial: trial_module.Trial) -> None:
    """One of two conductors cannot publish for half a minute, the other can."""
    settings = trial.stack.settings
    cell = settings.cell_names[0]
    victim = settings.conductor_names(cell)[0]
    with tcp_proxy.Proxy(settings.port("mariadb")) as proxy:
        trial.stack.override(victim, {"nodb_sqlalchemy": {"connection": _url(victim, proxy.port)}})
        try:
            # The silence of its former life, killed by the restart, must be over.
            time.sleep(_FORGOTTEN_SECONDS)
            trial.wait_served()
            trial.boot("before")
            trial.fault(f"the back end of {victim} stalls for {_STALL_SECONDS:.0f} s")
            frozen = time.monotonic()
            proxy.freeze()
            trial.boot("during", 4)
            reason = trial.wait_noticed(cell, max(1.0, frozen + 30.0 - time.monotonic()))
            trial.expect(reason is not None, "a reporter that cannot publish is noticed")
            trial.boot("stalled", 4)
            time.sleep(max(0.0, frozen + _STALL_SECONDS - time.monotonic()))
            proxy.thaw()
            trial.heal(f"flows again after {time.monotonic() - frozen:.0f} s")
            trial.wait_served()
            trial.boot("after")
        finally:
            trial.stack.override(victim, None)
    trial.wait_served()


def tables(trial: trial_module.Trial) -> list[str]:
    """The synchronizer's tables, without alembic's own."""
    rows = trial.stack.sql(
        "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = %s AND table_name NOT LIKE '%%alembic%%'",
        configuration.STORE_DATABASE,
    )
    return sorted(str(name) for (name,) in rows)


def empty(trial: trial_module.Trial, table: str) -> None:
    """Delete every row of one of them."""
    trial.stack.sql(f"DELETE FROM {configuration.STORE_DATABASE}.{table}")


def _url(user: str, port: int) -> str:
    location = f"127.0.0.1:{port}/{configuration.STORE_DATABASE}"
    return f"mysql+pymysql://{user}:{stack_settings.PASSWORD}@{location}"
