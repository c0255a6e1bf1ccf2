# SPDX-License-Identifier: Apache-2.0
"""Options of how hosts are looked at: their objects, and what requests alike share."""

from __future__ import annotations

from oslo_config import cfg

CHOICE_OPTS: list[cfg.Opt] = [
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
