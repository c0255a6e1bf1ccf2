# SPDX-License-Identifier: Apache-2.0
"""One request's way through its choices: propose, take, refuse, alternates.

As Nova 34's scheduler manager (``_schedule``, ``_get_sorted_hosts`` and
``_get_alternate_hosts``), but for two things: a host whose claim failed is not
proposed again, not even as an alternate; and a host that the first servers of
the request filled up is passed over at once instead of after a failed claim.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import claim_facts
from nova_nodb_scheduler.scheduling.pipeline import (
    chosen_hosts,
    decision_steps,
    host_choosers,
    plugin_contract,
    shortlist,
)

#: Choices that are looked for at least, so that a refusal or two cost nothing.
_AHEAD = 4


#: (request, frame, which of its servers) -> its steps
Steps = Callable[[requests.Request, host_frame.HostFrame, int], decision_steps.DecisionSteps]


class FollowingServers:
    """What makes the next server's shortlist of a request for several.

    :param lock: the engine's
    :param frame: a fork that the request consumes from
    """

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[bool],
        frame: host_frame.HostFrame,
        steps: Steps,
    ) -> None:
        self.lock = lock
        self.frame = frame
        self.steps = steps


class Plan:
    """Made by :meth:`.engine.Engine.plan`. One thread.

    :ivar counts: what each step was given and left, in the order they ran, up
        to the first that left nobody; of the server that is placed next. Where
        filters on objects are asked best first, of the hosts asked so far
    :ivar is_drawn: whether hosts come as they were drawn, not best first
    :ivar is_told_apart: see :attr:`.decision_steps.DecisionSteps.told_apart`; of that server, too
    """

    def __init__(
        self,
        request: requests.Request,
        settings: decision_settings.SchedulingOptions,
        rng: random.Random,
        source: chosen_hosts.HostSource,
        counts: tuple[decision_steps.FilterCount, ...],
        *,
        following: FollowingServers | None = None,
        objects: plugin_contract.HostObjects | None = None,
        explained: bool = False,
        is_told_apart: bool = False,
        chooser: host_choosers.Chooser = host_choosers.Chooser.BEST,
    ) -> None:
        self.counts = counts
        self.is_told_apart = is_told_apart
        self.is_drawn = chooser is not host_choosers.Chooser.BEST
        self._request = request
        self._settings = settings
        self._rng = rng
        self._source = source
        self._drawn = host_choosers.DrawnHosts(source, chooser) if self.is_drawn else None
        self._next = following
        self._objects = objects
        self._explained = explained
        self._index = 0
        self._group_hosts = request.group.hosts if request.group is not None else frozenset()
        self._taken: list[tuple[chosen_hosts.Choice, str | None]] = []
        self._consumed: set[int] = set()
        self._behind = False
        self._refused: set[str] = set()
        self._ordered: list[chosen_hosts.Choice] = []
        self._complete = False
        self._look_for(1 + max(settings.max_attempts - 1, 0))
        self._count_asked()

    def best(self, limit: int = 1) -> list[chosen_hosts.Choice]:
        """Return up to ``limit`` hosts for the next server, in the order to try them.

        The same call again gives the same hosts, less those refused since.

        :raises RuntimeError: a server was taken, and the plan is for one only
        """
        if self._behind:
            self._refresh(self._index + 1)
        self._look_for(limit)
        return self._open()[:limit]

    @property
    def passed(self) -> int:
        """How many hosts pass all filters asked so far; 0 where none were asked."""
        return self.counts[-1].after if self.counts else 0

    def take(self, chosen: chosen_hosts.Choice, instance_uuid: str | None = None) -> None:
        """Say that a server goes to a host; the next one sees its share gone."""
        self._taken.append((chosen, instance_uuid))
        self._behind = True
        if self._next is not None:
            self._consume(self._next, chosen, instance_uuid, servers=1)
        if self._objects is not None:
            self._objects.consume(chosen.uuid, instance_uuid)

    def refuse(self, chosen: chosen_hosts.Choice) -> None:
        """Say that a claim failed: this plan does not propose the host again.

        If a server took the host already, it gives its share back, but for
        what only Nova's objects know of.
        """
        self._refused.add(chosen.uuid)
        # By identity: another server may have the host, from a choice of its own.
        taken = [each for each in self._taken if each[0] is chosen]
        self._taken = [each for each in self._taken if each[0] is not chosen]
        for each, instance_uuid in taken:
            self._behind = True
            if self._next is not None:
                self._consume(self._next, each, instance_uuid, servers=-1)

    def _consume(
        self,
        following: FollowingServers,
        chosen: chosen_hosts.Choice,
        instance_uuid: str | None,
        *,
        servers: int,
    ) -> None:
        flavor = self._request.flavor
        resources = {}
        if chosen.allocation_requests:
            allocations = chosen.allocation_requests[0]["allocations"]
            resources = allocations.get(chosen.uuid, {}).get("resources", {})
        with following.lock:
            frame = following.frame
            if frame.row_of(chosen.uuid) == chosen.row:
                frame.consume(
                    chosen.row,
                    vcpus=flavor.vcpus,
                    memory_mb=flavor.memory_mb,
                    disk_gb=flavor.root_gb + flavor.ephemeral_gb,
                    resources=resources,
                    devices=int(self._request.fitted.get(claim_facts.DEVICES, 0)),
                    instance_uuid=instance_uuid,
                    servers=servers,
                )
            # A host's instances are those of all its nodes.
            self._consumed.update(frame.rows_of_host(chosen.cell, chosen.host))
        group = self._request.group
        if group is not None:
            hosts = self._group_hosts.union(each.host for each, _ in self._taken)
            group = attrs.evolve(group, hosts=hosts)
        # The next server is another one: where the first stands is no excuse for it.
        self._request = attrs.evolve(self._request, group=group, instance_uuid=None)

    def alternates(
        self, taken: Sequence[chosen_hosts.Choice], count: int
    ) -> list[list[chosen_hosts.Choice]]:
        """Return for each host taken up to ``count`` others of its cell to go to instead.

        After several servers the hosts are filtered and weighed once more
        first, as Nova does. Servers may get the same alternates.
        """
        if count <= 0:
            return [[] for _ in taken]
        if self._index > 0 and self._behind:
            # As Nova, which asks for the last server once more: the other nodes of
            # the host it stands on pass the filter that looks for the server itself.
            self._request = attrs.evolve(self._request, instance_uuid=self._taken[-1][1])
            self._refresh(self._index)
        passed_over = self._refused | {each.uuid for each in taken}
        by_cell: dict[str, list[chosen_hosts.Choice]] = {}
        for cell in {each.cell for each in taken}:
            near = [
                each for each in self._ordered if each.cell == cell and each.uuid not in passed_over
            ][:count]
            if len(near) < count and not self._complete:
                known = passed_over | {each.uuid for each in self._ordered}
                near += self._more_in_cell(cell, count - len(near), known)
            by_cell[cell] = near
        return [list(by_cell[each.cell]) for each in taken]

    def shares(self, chosen: chosen_hosts.Choice) -> tuple[chosen_hosts.WeightShare, ...]:
        """Return what each weigher gave to a host of this plan.

        :raises RuntimeError: the plan was not made to be explained
        """
        if not self._explained:
            raise RuntimeError("Ask for the plan with explain=True to see the weighers' shares.")
        return self._source.share(chosen.uuid)

    # -- the order of hosts ---------------------------------------------------

    def _open(self) -> list[chosen_hosts.Choice]:
        return [each for each in self._ordered if each.uuid not in self._refused]

    def _look_for(self, limit: int) -> None:
        """Find hosts until ``limit`` may be proposed, or there are no more."""
        if not self._ordered and not self._complete:
            # What is drawn by now was drawn from all.
            subset = 1 if self.is_drawn else self._settings.host_subset_size
            self._extend(max(limit, subset, _AHEAD))
            among = min(subset, len(self._ordered))
            if among > 1:
                # Nova draws one of the best; the others keep their order.
                drawn = self._ordered.pop(self._rng.randrange(among))
                self._ordered.insert(0, drawn)
        while not self._complete and (missing := limit - len(self._open())) > 0:
            self._extend(max(missing, _AHEAD))

    def _extend(self, count: int) -> None:
        known = self._refused | {each.uuid for each in self._ordered}
        if self._drawn is not None:
            more = self._drawn.next(count, frozenset(known))
        else:
            more = self._source.best_first(count, known)
        self._ordered += more
        self._complete = len(more) < count

    def _more_in_cell(self, cell: str, count: int, known: set[str]) -> list[chosen_hosts.Choice]:
        if self._drawn is not None:
            return self._drawn.next(count, frozenset(known), cell)
        return self._source.in_cell(cell, count, known)

    def _refresh(self, index: int) -> None:
        following, source = self._next, self._source
        if following is None or not isinstance(source, shortlist.Shortlist):
            raise RuntimeError(
                "The plan was made for one server; ask for it with the number of servers."
            )
        with following.lock:
            steps = following.steps(self._request, following.frame, index)
            counts = source.follow(steps, following.frame, self._consumed)
        if self._objects is not None:
            counts += source.ask(self._objects, index)
        self._index = index
        self.counts = counts
        self.is_told_apart = steps.told_apart
        self._consumed.clear()
        self._behind = False
        self._ordered = []
        self._complete = False
        self._look_for(max(self._settings.max_attempts, 1))
        self._count_asked()

    def _count_asked(self) -> None:
        """Add the counts of filters that were asked only while hosts were looked for."""
        if isinstance(self._source, shortlist.Shortlist):
            self.counts += self._source.asked
