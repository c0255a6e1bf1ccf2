# SPDX-License-Identifier: Apache-2.0
"""Some processes have the plugin's lines in nova.conf, and others have not."""

from tests.faults import trial as trial_module
from tools.stack import database

_UNREPORTED_SECONDS = 60.0
"""Each nova-compute sends a heartbeat every 10 s; what a stock conductor takes nobody reports."""


def one_conductor_without(trial: trial_module.Trial) -> None:
    """Heartbeats that nobody reported give it away."""
    settings = trial.stack.settings
    cell = settings.cell_names[0]
    victim = settings.conductor_names(cell)[0]
    trial.boot("before")
    trial.fault(f"{victim} without the plugin's lines")
    trial.stack.switch([victim], False)
    # The end of its former life is noticed first, as that of any conductor, and swept away.
    reason = trial.wait_noticed(cell, _UNREPORTED_SECONDS, "heartbeats nobody reported")
    trial.expect(reason is not None, "a conductor without the plugin is noticed")
    trial.boot("during", 6)
    trial.heal(f"{victim} with the plugin's lines")
    trial.stack.switch([victim], True)
    trial.wait_served()
    trial.boot("after")


def rolling_there_and_back(trial: trial_module.Trial) -> None:
    """The way back and the switch-on, one process after the other, with servers at each step."""
    stack = trial.stack
    names = stack.settings.control_plane_names
    schedulers = stack.settings.scheduler_names
    others = [name for name in names if name not in schedulers]
    trial.boot("on", 2)
    trial.fault("the plugin's lines are taken away, one process after the other")
    stack.switch(schedulers[:1], False)
    trial.boot("one-stock-scheduler", 4)
    stack.switch(schedulers[1:], False)
    trial.boot("stock-schedulers", 2)
    for name in others:
        stack.switch([name], False)
    trial.note("stock altogether")
    removed = trial.boot("stock", 4)[:2]
    trial.cloud.delete_servers([server["id"] for server in removed])
    trial.forget(removed)
    aggregate = _aggregate(trial, "fault12")
    trial.fault("the plugin's lines are given back, one process after the other")
    for name in others:
        stack.switch([name], True)
    trial.boot("reporting", 2)
    _import(trial)
    trial.expect(trial.compare(), "compare is clean before the first scheduler is switched")
    trial.fault("the first scheduler is switched")
    stack.switch(schedulers[:1], True)
    trial.boot("one-scheduler", 4)
    trial.heal("the last scheduler is switched")
    stack.switch(schedulers[1:], True)
    trial.wait_served()
    trial.boot("all", 4)
    trial.cloud.compute.delete(f"/os-aggregates/{aggregate}")


def _import(trial: trial_module.Trial) -> None:
    database.run(trial.stack.settings, "nova-nodb-manage", trial.command("import"))
    trial.say("imported")


def _aggregate(trial: trial_module.Trial, name: str) -> int:
    """Make an aggregate, which no heartbeat would give away."""
    body = {"aggregate": {"name": name, "availability_zone": None}}
    answer = trial.cloud.compute.post("/os-aggregates", json=body).json()
    return int(answer["aggregate"]["id"])
