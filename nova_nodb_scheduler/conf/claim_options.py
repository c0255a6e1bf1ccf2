# SPDX-License-Identifier: Apache-2.0
"""Options of claims, and of the allocations that they precede."""

from __future__ import annotations

from oslo_config import cfg

CLAIM_OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "claim_deadline_seconds",
        default=30.0,
        min=1,
        help="""
How long a request goes on trying to allocate in Placement when others write to
the same providers, or Placement does not answer.
""",
    ),
    cfg.StrOpt(
        "claims",
        default="on",
        choices=[
            ("on", "schedulers claim hosts of one another before they allocate"),
            ("off", "each scheduler trusts Placement alone, as stock Nova does"),
        ],
        help="""
Whether a scheduler claims a host by compare-and-set on the synchronizer before
it allocates there. With ``on`` any number of schedulers may run: capacity,
bounds on instances and I/O, and server group policies hold among them, for two
small writes a server on the back end. Placement by itself over-commits when
allocations race. Turn it off only where a single scheduler worker runs. All
schedulers must have the same value.

Claims are made for requests decided from memory (``candidates = memory``). What is
allocated otherwise is noted, which tells others of it, and whose it is.
""",
    ),
    cfg.StrOpt(
        "verify_allocations",
        default="tight",
        choices=[
            ("tight", "without a claim always, with one where little room is left"),
            ("always", "every allocation"),
            ("never", "none: Placement's word is trusted, as stock Nova does"),
        ],
        help="""
Which allocations are looked at once they are written, and withdrawn where
Placement, which over-commits when allocations race, granted more than there is.
An allocation that no claim could be judged for (on Nova's own path, or by a
conductor without an answer of the back end) is looked at with ``tight`` and
``always``, for one or two requests to Placement each. With ``tight`` so is one
under a claim where room is left on the host for fewer than four more like it:
another scheduler that cannot reach the back end may race for it. Elsewhere it
costs nothing. ``always`` finds writers that know of no claims (stock schedulers)
on every host, for one or two requests to Placement more each server. Set
``never`` where nothing but these schedulers allocates, and the back end is never
away from one of them alone.
""",
    ),
    cfg.FloatOpt(
        "claim_lease_seconds",
        default=60.0,
        min=2,
        help="""
How long a claim holds its place before the allocation is written, by the back
end's clock. A scheduler that sleeps for longer finds its claim gone, takes its
allocation back and goes to the next host. What a scheduler that died had
claimed is free again after this time, and so is room of which Placement did not
answer whether it was allocated. Longer than ``claim_deadline_seconds``, and than a
call to Placement is ever carried out behind the time when nobody waits for it.
""",
    ),
    cfg.FloatOpt(
        "claim_wait_seconds",
        default=75.0,
        min=0,
        help="""
How long a request that is decided from memory waits, in all, before it is refused
for claims that are neither confirmed nor given back. A scheduler confirms a claim
within a second as a rule; one that died leaves it for the rest of
``claim_lease_seconds``, and nobody knows before whether its room is taken. At most as
many requests of a worker wait at once as half of its threads ([DEFAULT]
executor_thread_pool_size); none that a queue has, which waits there. Somewhat longer
than the lease, or a request is refused just before that room is free. All schedulers
must have the same value: places in server groups are kept for as much longer. 0:
refused at once.
""",
    ),
    cfg.BoolOpt(
        "delete_orphan_allocations",
        default=True,
        help="""
Whether allocations are deleted that a scheduler or conductor left in Placement as
it died, or wrote after Nova had given up waiting, and whose server will never be. One
is deleted only where a claim says who wrote it and just that is allocated, and
where, twice, half a minute apart, either that process is gone and neither a build
request nor an instance nor a migration of that uuid is in the API database or in
any cell, cell0 and disabled cells included; or its server is in cell0. A database
that does not answer, or is missing, keeps all of them. With ``false`` they are told
by ``nova-nodb-manage status``, the metric ``nodb_orphan_allocations`` and
``nova-nodb-manage allocations audit`` alone, and hold their place until an operator
deletes them: for where nothing but a person may delete what Placement has.
""",
    ),
    cfg.StrOpt(
        "claim_spread",
        default="auto",
        choices=[
            ("auto", "schedulers prefer different hosts of those that Nova might take"),
            ("tolerant", "the same of those about as good as the best: deviates from Nova"),
            ("off", "every scheduler takes the first of the best hosts"),
        ],
        help="""
How several schedulers keep out of one another's way. All of them find the same
best host; who claims it a moment later than another loses a compare-and-set,
judges the host again by what the other claimed, and claims what is left of it: the
same decision, one exchange with the back end later.
With ``auto`` each host belongs to one of the living schedulers, which prefers
its own among those that Nova itself might take: hosts that weigh exactly the
same, and the best ``[filter_scheduler] host_subset_size``. Every decision is
one that Nova could have made, whatever the number of workers.
With ``tolerant`` hosts about as good as the best count as ties: hosts whose
weights differ from it by no more than 0.05, and the best hundredth of all that
pass the filters if they differ by no more than 1. That deviates from Nova's
order; never where server groups, a preferred cell, image properties or weighers
that only Nova's own code runs have a say. Choose it where many schedulers
decide many requests a second over hosts that weigh differently, the metric
nodb_claim_writes_absorbed_total grows with a good part of the requests, and an
exchange with the back end is dear.
A scheduler worker that is alone keeps Nova's order always. Without ``claims``
this has no effect.
""",
    ),
    cfg.FloatOpt(
        "allocation_batch_window_seconds",
        default=0.03,
        min=0,
        max=1,
        help="""
How long the allocations of a request wait at most for those of other requests
that the same scheduler worker decides at this moment, to go to Placement in one
call. A request that is alone never waits, nor does one whose company has come.
With 0 nobody waits: only what queues up while as many calls as allowed are under
way, or one to the same host, shares the next one. Four servers in one call cost
Placement two thirds of four calls. Set 0 where Placement has processors to spare
and the time of each request matters more. Placement's log shows a shared call
under the first request's id; the scheduler's DEBUG log has them all.
""",
    ),
    cfg.IntOpt(
        "allocation_batch_servers",
        default=16,
        min=1,
        max=1000,
        help="""
Most servers of different requests whose allocations share one call. A request
for more still goes in one. Beyond some 8 a server hardly gets cheaper.
""",
    ),
    cfg.IntOpt(
        "allocation_calls",
        default=2,
        min=1,
        max=16,
        help="""
How many calls that write allocations a scheduler worker has under way at
Placement at once. No two of them write to the same host: Placement may grant too
much where they race. Raise it where Placement has processors to spare while
requests wait; more calls at once share less, and cost Placement more each.
""",
    ),
]
