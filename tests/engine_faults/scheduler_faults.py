# SPDX-License-Identifier: Apache-2.0
"""Schedulers that die or sleep, at each step that driver and claims enumerate, or anywhere."""

from __future__ import annotations

import signal
import time

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from tests.engine_faults import engines, fault, processes, scheduler, steps, truth, world

#: Longer than every time-out, the claims' leases and the silence of a feed.
FREEZE_SECONDS = (
    max(engines.TIMEOUT_SECONDS, scheduler.LEASE_SECONDS, scheduler.SILENCE_SECONDS) + 0.7
)

#: Longer than readers wait for a writer and than it waits itself, and shorter than
#: the pause of a reader that lags.
NAP_SECONDS = engines.TIMEOUT_SECONDS + 0.2

#: How long a step may take to be come by.
_REACH_SECONDS = 40.0

#: What makes a step be come by that random operations seldom or never take:
#: by driver and step, an operation of the scheduler's process.
PROVOCATIONS = {
    ("memcached", "append the name of a record to be deleted to the deletion log"): "phoenix",
    ("memcached", "add the placeholder of an absent record"): "novelty",
    ("memcached", "put the record's name on the index"): "novelty",
    # Of a record that nobody else writes: its late writer is not refused by chance.
    ("memcached", "take versions from the counter"): "mark",
    ("memcached", "add the log slots"): "mark",
    ("memcached", "compare-and-set the records"): "remark",
    ("memcached", "look again at records that were refused"): "contest",
    ("memcached", "void a slot that nobody used"): "unused_version",
    ("memcached", "compare-and-set a record to shut its writer out"): "unused_slot",
    ("memcached", "add the name of an epoch where there is none"): "flushed",
    ("memcached", "put an epoch on the list of those that keys may be of"): "reset",
    ("memcached", "put an epoch in the place of another"): "reset",
    ("memcached", "remove what is left of an epoch"): "reset",
    ("memcached", "take an epoch that was swept off the list"): "reset",
    (
        "memcached",
        "store the epoch in force anew, so that nobody has a token to replace it with",
    ): "half_begun",
    ("memcached", "raise the floor"): "bury",
    ("memcached", "mark tombstones as collected"): "bury",
    ("memcached", "take collected tombstones off the index"): "bury",
    ("memcached", "remove collected tombstones"): "bury",
    ("memcached", "take names off the deletion log"): "bury",
    ("etcd", "send it again, to write over a tombstone"): "phoenix",
    ("etcd", "drop what an earlier epoch left"): "reset",
    ("etcd", "raise the floor and drop tombstones, in one transaction"): "collect",
    ("redis", "send the script that drops old tombstones"): "collect",
    ("redis", "have the server begin an epoch where none is in force"): "reset",
    # Small writes of MariaDB come by neither: they are one statement.
    ("sqlalchemy", "upsert"): "batch",
    ("sqlalchemy", "commit"): "batch",
    ("sqlalchemy", "begin epoch"): "lost_sequence",
    ("sqlalchemy", "collect"): "collect",
    ("sqlalchemy", "reset"): "reset",
}


#: Provocations that begin an epoch, or take what was written.
_LOSING = ("reset", "flushed", "lost_sequence")

_OF_GROUPS = ("joined", "left", "member confirmed")


def _provocation(driver: str, layer: str, step: str) -> str:
    if layer == "claims":
        return "grouped" if step in _OF_GROUPS else "crowded" if step == "released" else ""
    return PROVOCATIONS.get((driver, step), "")


def step_faults(kind: type[engines.Engine]) -> list[fault.Fault]:
    """Return what is done at every step of a driver and of the claims.

    Kill and freeze; naps at the driver's steps only: what the claims' leases and
    time-outs are to judge begins with a freeze.
    """
    places = [("driver", step) for step in kind.steps()]
    places += [("claims", step) for step in ledger_claimer.ClaimBatches.STEPS]
    places += [("claims", step) for step in steps.AUTHORITY_STEPS]
    return [
        fault.Fault(
            f"{action.value} at {layer}: {step}",
            fault.CLIENT_SECONDS,
            lambda trial, at=(layer, step, action): _strike(trial, *at),
            loses=_provocation(kind.driver, layer, step) in _LOSING,
        )
        for layer, step in places
        for action in (steps.Action.KILL, steps.Action.FREEZE, steps.Action.NAP)
        if layer == "driver" or action is not steps.Action.NAP
    ]


def _strike(trial: fault.Trial, layer: str, step: str, action: steps.Action) -> None:
    victim = trial.world.schedulers[trial.number % len(trial.world.schedulers)]
    provocation = _provocation(trial.engine.driver, layer, step)
    victim.ask("arm", layer, step, action.value, provocation)
    if not victim.reached(_REACH_SECONDS):
        raise world.Broken(f"no scheduler came by the step {step!r}")
    if action is steps.Action.KILL:
        _killed(trial, victim)
    else:
        beyond = max(FREEZE_SECONDS, trial.engine.keeps_seconds + 0.7)
        _frozen(trial, victim, beyond if action is steps.Action.FREEZE else NAP_SECONDS)


def _killed(trial: fault.Trial, victim: processes.Process) -> None:
    if not victim.wait_dead(5.0) or victim.exitcode != -signal.SIGKILL:
        raise world.Broken(f"{victim.identity} did not die: {victim.exitcode}")
    trial.healed()
    trial.recovered(besides=victim)
    trial.replace(victim)


def _frozen(trial: fault.Trial, victim: processes.Process, seconds: float) -> None:
    world.wait(lambda: victim.is_stopped, 5.0, f"{victim.identity} does not stand still")
    before = trial.world.grants()
    time.sleep(seconds)
    trial.notes["granted meanwhile"] = trial.world.grants() - before
    victim.resume()
    victim.ask("disarm")
    trial.healed()
    trial.recovered()


# -- readers that sleep ------------------------------------------------------------------


def _put_to_sleep(trial: fault.Trial, victim: processes.Process) -> None:
    """Stop a scheduler while it holds no lock of the engine: it is to sleep as a reader."""
    for _ in range(20):
        victim.pause()
        world.wait(lambda: victim.is_stopped, 5.0, f"{victim.identity} does not stand still")
        try:
            trial.retention_passes()
        except errors.BackendUnavailable:
            victim.resume()
            time.sleep(0.2)
        else:
            return
    raise world.Broken(f"{victim.identity} holds locks whenever it is stopped")


def _frozen_reader(trial: fault.Trial) -> None:
    """A scheduler sleeps, what it should have read is collected, and it goes on."""
    victim = trial.world.schedulers[0]
    before = victim.ask("status")["reasons"]
    _put_to_sleep(trial, victim)
    time.sleep(FREEZE_SECONDS)
    trial.retention_passes()
    victim.resume()
    trial.healed()
    trial.recovered()
    after = victim.ask("status")["reasons"]
    new = {name: count for name, count in after.items() if count > before.get(name, 0)}
    trial.notes["new snapshot"] = ", ".join(new)
    if not new:
        raise world.Broken("what was collected was not missed")


def _reborn_host(trial: fault.Trial) -> None:
    """A host is deleted and created again while a reader sleeps, its tombstone collected."""
    victim = trial.world.schedulers[0]
    client = trial.world.client
    uuid = sorted(truth.MADE)[0]
    _put_to_sleep(trial, victim)
    with trial.world.without_reporter():
        keys = [key for key in truth.host_keys(uuid) if key.namespace != "providers"]
        # Others may publish it meanwhile; what counts is that it was gone once.
        gone: set[records.RecordKey] = set()
        deadline = time.monotonic() + 10.0
        while gone != set(keys) and time.monotonic() < deadline:
            found = client.read(keys)
            writes = [
                records.Write(key, found[key].revision, deleted=True)
                for key in keys
                if key in found and not found[key].deleted
            ]
            if writes:
                results = client.write(writes)
                gone |= {w.key for w, result in zip(writes, results, strict=True) if result.won}
        trial.retention_passes()
    time.sleep(0.5)
    trial.retention_passes()
    time.sleep(FREEZE_SECONDS - 2.0)
    victim.resume()
    trial.healed()
    trial.recovered()


def _snapshot_under_load(trial: fault.Trial) -> None:
    """A scheduler is killed, and its successor reads its snapshot while all others write."""
    victim = trial.world.schedulers[0]
    others = [each for each in trial.world.schedulers if each is not victim]
    for each in others:
        each.ask("provoke", "burst")
    victim.pause()
    victim.end()
    trial.replace(victim)
    trial.world.wait_ready(world.START_SECONDS)
    trial.healed()
    for each in others:
        each.ask("provoke", "")
    trial.world.work()
    trial.recovered()


def _random_kills(trial: fault.Trial) -> None:
    """Schedulers die anywhere, one after the other."""
    for _ in range(2):
        time.sleep(0.7)
        victim = trial.world.schedulers[0]
        victim.end()
        trial.replace(victim)
        trial.world.schedulers.append(trial.world.schedulers.pop(0))
        trial.world.wait_ready(world.START_SECONDS)
        trial.world.work()
    trial.healed()
    trial.recovered()


READERS = (
    fault.Fault("reader frozen past the retention", fault.CLIENT_SECONDS, _frozen_reader),
    fault.Fault("host deleted and created across the floor", fault.CLIENT_SECONDS, _reborn_host),
    fault.Fault("snapshot read under full write load", fault.CLIENT_SECONDS, _snapshot_under_load),
    fault.Fault("schedulers killed anywhere", fault.CLIENT_SECONDS, _random_kills),
)
