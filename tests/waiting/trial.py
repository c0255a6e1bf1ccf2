# SPDX-License-Identifier: Apache-2.0
"""One round: more servers than there is room for, deletions, and all of them have stood."""

import collections
import contextlib
import random
import time
from collections.abc import Callable, Collection, Sequence

import attrs
import requests
from keystoneauth1 import exceptions as keystone_exceptions

from tests.capacity import ledger as capacity_ledger
from tests.chaos import deployment, grants, injection, plan
from tests.chaos import snapshot as snapshot_module
from tests.chaos.logs import novas_own, withdrawals
from tests.waiting import observations
from tools.stack import cloud as stack_cloud

FLAVOR = "42"

#: What a client may be told while services are killed; whether it was taken is not known then.
_UNTOLD = (keystone_exceptions.ClientException, requests.RequestException, OSError)

_FULL_SECONDS = 180.0
_STEADY_SECONDS = 5.0
_TURN_SECONDS = 30.0
_FAULTY_TURN_SECONDS = 300.0
_ASK_PAUSE_SECONDS = 0.3
_EMPTY_SECONDS = 180.0

Say = Callable[[str], None]


@attrs.frozen
class Round:
    """What became of a round. Seconds are None where nothing was measured.

    :param asked: servers that the API took
    :param untold: of which nobody knows whether it did
    :param active_first: that stood when the cloud was full
    :param waiting: that were still BUILD then, without a fault
    :param failed: that ended in ERROR and were never at a compute
    :param failed_builds: that a nova-compute had begun to build, and failed with; as in stock
        Nova, where its conductor or database goes away meanwhile. In ERROR, or on its host by the
        word of nova-compute's log, which could tell nobody else. What it gave up before that is
        sent again, and none of them
    :param lost: that never stood, failed builds apart
    :param sent_again: that stood in the end, although a nova-compute gave them up
    :param twice: that were built more than once, or held two hosts at a time; a build that a
        nova-compute gave up by its log is none. An attempt whose conductor was killed may leave an
        allocation, which the next one takes away first
    :param out_of_order: that were placed before one asked for earlier; not judged with faults
    :param over: most that was allocated beyond what a host has, in any sample
    :param withdrawn: likewise, where its writer took it back and nobody was answered with it: where
        requests are decided among Placement's candidates
    :param placed_seconds: from the sample that showed the room to the one that showed it used
    :param active_seconds: likewise, until the server stood
    :param call_seconds: of the user's calls that the API took
    """

    number: int
    seed: int | None
    faults: tuple[str, ...]
    slots: int
    asked: int
    untold: int
    active_first: int
    waiting: int
    failed: tuple[str, ...]
    failed_builds: tuple[str, ...]
    lost: tuple[str, ...]
    twice: tuple[str, ...]
    out_of_order: tuple[str, ...]
    over: int
    placed_seconds: tuple[float, ...]
    active_seconds: tuple[float, ...]
    samples: int
    blind_seconds: float
    seconds: float
    failures: tuple[str, ...] = ()
    call_seconds: tuple[float, ...] = ()
    withdrawn: int = 0
    sent_again: tuple[str, ...] = ()

    @property
    def is_kept(self) -> bool:
        """Whether all that was promised was so."""
        broken = self.failed or self.lost or self.twice or self.over or self.failures
        if broken or not self.samples:
            return False
        if self.faults:
            return True
        if self.failed_builds:
            return False
        waits = self.asked - self.slots
        whole = (self.active_first, self.waiting) == (self.slots, waits)
        return whole and not self.out_of_order


class Trial:
    """Rounds on one stack.

    :param wanted: servers to ask for
    :param say: told what happens
    """

    def __init__(self, deployed: deployment.Deployment, wanted: int, say: Say) -> None:
        self._deployed = deployed
        self._stack = deployed.stack
        self._wanted = wanted
        self._say = say

    def run(self, number: int, faults: Sequence[plan.Fault] = (), seed: int | None = None) -> Round:
        """Run one round and leave the cloud empty again."""
        began = time.monotonic()
        settings = self._stack.settings
        computes = novas_own.ServiceLogs(
            (settings.log / f"{name}.log" for name in settings.compute_names),
            novas_own.failed_builds,
        )
        with contextlib.ExitStack() as held:
            reader = held.enter_context(
                contextlib.closing(snapshot_module.Reader(self._stack.settings))
            )
            slots = reader.snapshot().slots()
            told = withdrawals.since_now(
                settings.log / f"{name}.log" for name in (*settings.scheduler_names, "placement")
            )
            watch = held.enter_context(observations.Watch(reader.snapshot, told))
            hurt = held.enter_context(
                injection.Injection(
                    self._stack, self._deployed.backend, self._deployed.links, self._say
                )
            )
            hurt.begin(faults)
            asked = _Asked(self._stack.cloud, f"wait-{number}-")
            for _ in range(self._wanted):
                asked.one_more()
            active, waiting = self._wait_full(watch, asked.ids, slots, bool(faults))
            self._say(f"{active} ACTIVE, {waiting} wait")
            turns = self._turns(watch, asked, slots, bool(faults))
            if faults:
                self._say("waiting for faults to be over, and for all to have stood")
                hurt.wait()
                # Their room is nobody's until their users delete them.
                for uuid in _failed_builds(watch.observed, asked.ids, computes.left()):
                    asked.delete(uuid)
                everybody = asked.ids
                watch.wait(
                    lambda seen: _have_ended(seen, everybody, computes.left()),
                    _FAULTY_TURN_SECONDS,
                )
            found = self._found(watch, asked, slots, (active, waiting), turns, computes.left())
            self._empty(watch, asked)
            return attrs.evolve(
                found,
                number=number,
                seed=seed,
                faults=tuple(map(str, faults)),
                failures=tuple(hurt.failures),
                seconds=time.monotonic() - began,
            )

    def _wait_full(
        self, watch: observations.Watch, ids: Sequence[str], slots: int, faulty: bool
    ) -> tuple[int, int]:
        """Wait until all room is used, and a little; return how many stand, and wait."""
        count = min(slots, len(ids))
        patience = _FAULTY_TURN_SECONDS if faulty else _FULL_SECONDS
        watch.wait(lambda seen: _standing(seen, ids) >= count, patience)
        time.sleep(_STEADY_SECONDS)
        active = _standing(watch.observed, ids)
        failed = sum(1 for uuid in ids if watch.observed.of(uuid).failed is not None)
        return active, len(ids) - active - failed

    def _turns(
        self, watch: observations.Watch, asked: "_Asked", slots: int, faulty: bool
    ) -> list[tuple[str, str | None]]:
        """Delete as many as wait, and see each room used. Returns who left and who came."""
        turns: list[tuple[str, str | None]] = []
        standing = [u for u in asked.ids if watch.observed.of(u).active is not None]
        rest = [u for u in asked.ids if u not in standing]
        for leaving in standing[: len(rest)]:
            before = {u for u in rest if watch.observed.of(u).active is not None}
            watch.observed.leaving.add(leaving)
            asked.delete(leaving)
            if faulty:
                # Rooms come while services go: nobody waits for the one before.
                time.sleep(random.Random(leaving).uniform(0.5, 2.0))
                continue

            def came(seen: observations.Observations, known: set[str] = before) -> bool:
                return any(seen.of(u).active is not None for u in rest if u not in known)

            watch.wait(came, _TURN_SECONDS)
            new = [u for u in rest if u not in before and watch.observed.of(u).active is not None]
            turns.append((leaving, new[0] if new else None))
        return turns

    def _found(
        self,
        watch: observations.Watch,
        asked: "_Asked",
        slots: int,
        full: tuple[int, int],
        turns: Sequence[tuple[str, str | None]],
        not_built: Collection[str],
    ) -> Round:
        seen = watch.observed
        builds = collections.Counter(
            build.server for build in capacity_ledger.builds(self._stack, asked.ids)
        )
        in_error = [u for u in asked.ids if seen.of(u).failed is not None]
        # A compute whose conductor is away tells its log alone that it had begun.
        left = _failed_builds(seen, asked.ids, not_built)
        failed_builds = tuple(u for u in asked.ids if u in left or (u in builds and u in in_error))
        pairs = [(seen.of(gone), seen.of(new)) for gone, new in turns if new is not None]
        complete = [(a.freed, b.placed, b.active) for a, b in pairs if a.freed is not None]
        return Round(
            number=0,
            seed=None,
            faults=(),
            slots=slots,
            asked=len(asked.ids),
            untold=asked.untold,
            active_first=full[0],
            waiting=full[1],
            failed=tuple(u for u in in_error if u not in failed_builds),
            failed_builds=failed_builds,
            sent_again=tuple(
                u for u in asked.ids if u in not_built and seen.of(u).active is not None
            ),
            lost=tuple(
                u for u in asked.ids if seen.of(u).active is None and u not in failed_builds
            ),
            twice=tuple(
                u
                for u in asked.ids
                # Nova builds elsewhere what a compute gave up.
                if builds[u] - (u in not_built) > 1 or seen.of(u).most_hosts > 1
            ),
            out_of_order=tuple(observations.out_of_order(seen, asked.ids[slots:])),
            over=max(seen.over_committed().values(), default=0),
            withdrawn=max(seen.over_committed(grants.WITHDRAWN).values(), default=0),
            placed_seconds=tuple(round(b - a, 2) for a, b, _ in complete if b is not None),
            active_seconds=tuple(round(c - a, 2) for a, _, c in complete if c is not None),
            samples=seen.samples,
            blind_seconds=round(watch.blind_seconds, 1),
            seconds=0.0,
            call_seconds=tuple(round(each, 3) for each in asked.call_seconds),
        )

    def _empty(self, watch: observations.Watch, asked: "_Asked") -> None:
        deadline = time.monotonic() + _EMPTY_SECONDS
        while time.monotonic() < deadline:
            now = watch.observed.latest
            left = set(now.servers) | set(now.build_requests) | set(now.allocated) if now else set()
            if now is not None and not left:
                return
            for uuid in left:
                asked.delete(uuid)
            time.sleep(3.0)
        self._say(f"the cloud is not empty: {len(left)} are left")


class _Asked:
    """Servers that were asked for, in order."""

    def __init__(self, cloud: stack_cloud.Cloud, prefix: str) -> None:
        self._cloud = cloud
        self._prefix = prefix
        self._image = cloud.image_id()
        self._count = 0
        self.ids: list[str] = []
        self.untold = 0
        self.call_seconds: list[float] = []

    def one_more(self) -> None:
        """Ask until the API says yes; an answer that is none is counted."""
        while True:
            self._count += 1
            began = time.monotonic()
            try:
                name = f"{self._prefix}{self._count:02}"
                self.ids.append(self._cloud.boot(name, self._image, FLAVOR))
                self.call_seconds.append(time.monotonic() - began)
                time.sleep(_ASK_PAUSE_SECONDS)
                return
            except _UNTOLD:
                self.untold += 1
                time.sleep(1.0)

    def delete(self, uuid: str) -> None:
        """Ask for a deletion until the API says yes, or that there is nothing."""
        for _ in range(30):
            try:
                self._cloud.compute.delete(f"/servers/{uuid}")
                return
            except keystone_exceptions.NotFound:
                return
            except _UNTOLD:
                time.sleep(1.0)


def _standing(seen: observations.Observations, ids: Sequence[str]) -> int:
    return sum(1 for uuid in ids if seen.of(uuid).active is not None)


def _failed_builds(
    seen: observations.Observations, ids: Sequence[str], not_built: Collection[str]
) -> list[str]:
    """Return the servers that never stood, and that nobody takes up from a nova-compute.

    In ERROR, or on its host: there it may have a guest.

    :param not_built: what nova-computes gave up by their logs
    """
    there = {} if seen.latest is None else seen.latest.servers
    return [
        uuid
        for uuid in ids
        if uuid in not_built
        and seen.of(uuid).active is None
        and (seen.of(uuid).failed is not None or (uuid in there and there[uuid].host))
    ]


def _have_ended(
    seen: observations.Observations, ids: Sequence[str], not_built: Collection[str]
) -> bool:
    failed = _failed_builds(seen, ids, not_built)
    return all(
        (seen.of(uuid).active, seen.of(uuid).failed) != (None, None) or uuid in failed
        for uuid in ids
    )
