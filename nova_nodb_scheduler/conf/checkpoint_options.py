# SPDX-License-Identifier: Apache-2.0
"""Options of a scheduler's local checkpoint."""

from __future__ import annotations

from oslo_config import cfg

CHECKPOINT_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "checkpoint_directory",
        help="""
Directory in which one nova-scheduler worker of a machine keeps a checkpoint of the
host states that it follows, and from which all of them begin when they start,
instead of with everything that the back end holds: a start then takes a fraction of
the time (``reference/performance``), and costs the back end what changed since.
Unset, none is written or read.

It is made with mode 0700 and must be the service's own, on a local disk that
outlasts a restart, as ``/var/lib/nova/nodb-checkpoint``; a checkpoint takes some 2.5 kB a
host, 6 kB of one with 20 servers, twice that while it is renewed. It holds what the
back end holds (names of hosts, servers and projects). Whatever is odd about it (another
release of the plugin, another epoch of the back end, damage, another owner, an age
beyond the feed's history of an hour) has everything be read, as without it, and one
line in the log says why.
""",
    ),
    cfg.FloatOpt(
        "checkpoint_interval_seconds",
        default=300.0,
        min=30.0,
        max=3600.0,
        help="""
Pause between the end of one checkpoint and the begin of the next. What changed since
the last one is read from the back end at a start; lower it where that is much, raise it
to spare the disk. A checkpoint of 100,000 hosts takes some seconds of a core, of which
its writer uses a quarter at most.
""",
    ),
    cfg.IntOpt(
        "checkpoint_max_mib",
        default=1024,
        min=1,
        max=65536,
        help="""
Largest checkpoint that is written or read, in MiB. A larger one is not written: the
former one stays, the log says so, and ``nodb_checkpoint_writes_total`` counts it. Nor is
one written that would leave less than 64 MiB of the disk free.
""",
    ),
]
