# SPDX-License-Identifier: Apache-2.0
"""Options of decisions: the mirror of Placement, hosts' objects, what requests alike share."""

from __future__ import annotations

from oslo_config import cfg

CANDIDATE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "candidates",
        default="memory",
        choices=[
            ("memory", "from the mirror of Placement that schedulers keep"),
            ("placement", "from GET /allocation_candidates, as stock Nova does"),
        ],
        help="""
Where a request's allocation candidates come from. With ``memory`` filters and
weighers run over columns, and Placement is asked only to allocate. Requests
that the mirror cannot answer (several request groups, nested or sharing
providers) go to Placement in any case, and are counted by reason.
""",
    ),
    cfg.FloatOpt(
        "mirror_sweep_interval_seconds",
        default=60.0,
        min=1,
        help="""
How often one scheduler worker, for all of them, compares the mirror with the
generations of all of Placement's providers: one request that costs Placement
about 0.1 ms a provider. Changes by Nova itself are followed at once; this
finds those of others. Raise it in very large clouds.
""",
    ),
    cfg.FloatOpt(
        "mirror_bound_seconds",
        default=300.0,
        min=2,
        help="""
Age of the last complete comparison beyond which the mirror is not used, and
candidates are asked of Placement. At least twice
``mirror_sweep_interval_seconds``.
""",
    ),
    cfg.FloatOpt(
        "mirror_tree_bound_seconds",
        default=10.0,
        min=0,
        help="""
How old the comparison of a chosen host's provider tree with Placement may be
when a server is put there. One that is older is compared before the allocation
is written: one ``GET /resource_providers?in_tree=...``, whatever the number of
hosts. So a trait, an aggregate or an inventory that an operator or another
service writes is missed for this long at most. Where servers are spread over
many hosts that is one request a decision, about 5 ms of Placement's CPU. Raise
it to spare Placement these; or, with many decisions a second, lower
``mirror_sweep_interval_seconds`` to half of it: then sweeps compare all trees
in time, and decisions ask nothing. 0 compares at each decision. A Placement that
is guarded compares as it writes: then no decision asks, unless something changed.
""",
    ),
    cfg.FloatOpt(
        "mirror_reread_seconds",
        default=86_400.0,
        min=60,
        help="""
Within what time every provider is read again, whatever its generation: a few
changes in Placement move none. About five requests a provider, spread evenly.
""",
    ),
    cfg.IntOpt(
        "mirror_readers",
        default=4,
        min=1,
        max=64,
        help="""
How many requests the keeper of the mirror has under way at Placement at once,
when it reads many providers: at the first start above all.
""",
    ),
]


CHOICE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "choice",
        default="best",
        choices=[
            ("best", "the one that weighs most, as Nova decides"),
            ("two", "the one that weighs more of two that are drawn"),
            ("random", "one that is drawn"),
        ],
        help="""
Which of the hosts that pass all filters a server takes, and in which order others
are tried and named as alternates. A flavor's extra spec ``nodb:choice`` goes before
this; a value there that is none of these is taken for ``best``, warned of once and
counted (``nodb_unknown_choices_total``).

With ``best`` several schedulers want the same host at the same moment, and lose
claims by it. With ``two`` they hardly meet, and servers are packed or spread nearly
as well: good for bursts of many requests. ``random`` heeds no weigher.
``host_subset_size``, ``shuffle_best_same_weighed_hosts`` and ``claim_spread`` have no
effect on what is drawn. Requests that are not decided from memory (see
``candidates``) take the best in any case.
""",
    ),
    cfg.StrOpt(
        "host_objects",
        default="exact",
        choices=[
            ("exact", "decide as Nova does, whatever it costs"),
            ("lazy", "ask such filters best host first, until there are hosts enough"),
        ],
        help="""
How filters that have no vectorised form are asked: those for NUMA topologies and
PCI devices, and the operator's own. They run on Nova's host state objects, one
for each host that the vectorised filters left.

``exact`` asks the operator's own about all of these hosts, and Nova's about as
many as it takes to find those with the least and the greatest weights that pass,
and hosts enough: the others then change nothing. ``lazy`` asks in the order of
weights, and deviates from Nova in this: weights are scaled by the hosts that the
vectorised filters left, not by those which pass all, so that another host may
come first where several weighers compete; a filter that fails at a host which
nobody looked at is not noticed; and a filter is not asked about every host for
every request. The chosen host passes all filters in both.

Choose ``lazy`` in large clouds where such requests are many and slow. It is
without effect where an enabled weigher has no vectorised form, and on filters
that look at all hosts together (``filter_all`` of their own).
""",
    ),
    cfg.IntOpt(
        "signature_cache_mib",
        default=256,
        min=1,
        help="""
Memory per scheduler worker for what requests alike share: which hosts pass and
what they weigh, about 70 bytes a host with Nova's default weighers, and 8 more
for each weigher whose multiplier host aggregates override. At 100,000 hosts that
is about 7 MiB for each kind of request, so that the default keeps some 35 of
them. A kind that is not kept costs a look at all hosts: milliseconds of CPU at
100,000. Raise it where more kinds than that come again and again.
""",
    ),
]
