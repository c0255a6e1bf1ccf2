# SPDX-License-Identifier: Apache-2.0
"""Options of what is reported, and of how long reporters and the feed are trusted."""

from __future__ import annotations

from oslo_config import cfg

REPORTER_OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "flush_interval_seconds",
        default=0.05,
        min=0.005,
        max=5,
        help="""
How long a reporter gathers changed rows before it publishes them together.
Lower it for fresher states, raise it for fewer statements on the back end.
""",
    ),
    cfg.FloatOpt(
        "place_bound_seconds",
        default=0.5,
        min=0,
        max=10,
        help="""
With compute_nodes = store or retired: how long a write of an instance or a
migration that decides where a server is waits until the back end has its record,
so that schedulers hear of it before who wrote it goes on. While the back end is
away, or slower than that, nobody waits, and records follow as they do in mode
mirror. 0: never wait.
""",
    ),
    cfg.FloatOpt(
        "heartbeat_flush_interval_seconds",
        default=1.0,
        min=0.05,
        max=10,
        help="""
How long a reporter gathers heartbeats of compute services before it publishes
them in one batch. It delays the moment at which a dead service that came back
is seen alive; service_down_time should be at least ten times as long.
""",
    ),
    cfg.StrOpt(
        "service_heartbeats",
        default="database",
        choices=[
            ("database", "each heartbeat is written to the row of its service, as in stock Nova"),
            ("both", "the same, and readers look at the back end, too: the step between"),
            ("store", "heartbeats go to the back end alone"),
        ],
        help="""
Where the heartbeats of nova-compute services stand, which say who is alive. With
``store`` an idle compute service sends 12 statements a minute less to its cell's
database: a conductor answers its heartbeat once the back end holds it, and every
reader (the API, evacuation, Nova's own scheduler) finds it there.
``[DEFAULT] servicegroup_driver`` stays ``db``.

Change it in steps, from ``database`` to ``both`` to ``store`` and back, each on
all conductors, APIs and schedulers before the next. The mode of a cell is recorded in the
back end and follows its conductors; it waits for those that cannot live with
it, and says so in their logs and in ``nova-nodb-manage status``. A service
without the plugin that reads from such a cell takes its living compute services for
dead: leave none.

A conductor that cannot reach the back end writes heartbeats to the database. A
reader that cannot takes nobody for dead whose heartbeats it cannot see; force a
dead host down then, to evacuate it.
""",
    ),
    cfg.BoolOpt(
        "heartbeat_journals",
        default=False,
        help="""
Whether a conductor writes the heartbeats of compute services to a journal of its own, about
a record a second, and not to a record of each service: a fraction of the back end's writes and of
what schedulers read. Rows of services are written as ever. It pays from some hundred heartbeats a
second on.

A cell journals while all its living conductors say that they are configured for it, and all living
schedulers that they read journals; until then, and from the first one on that is or does not, it
writes records. So switch it on, or off, on one conductor after the other, in any order. With
each change the cell takes Nova's own path until it is swept, a sweep or two.
``nova-nodb-manage status`` says for whom a cell waits.

Related options:

* ``service_heartbeats`` must not be ``store``: readers of rows need them beside journals.
* ``service_down_time`` must be at most 200 times ``heartbeat_flush_interval_seconds``: a journal
  reaches back 2.5 times as long, with a record a flush, and has 512 of them at most.
""",
    ),
    cfg.IntOpt(
        "max_dirty_records",
        default=200_000,
        min=100,
        help="""
How many changed records a reporter remembers while the back end is down. It
keeps names only, about 200 bytes each. Beyond it the reporter forgets them
all, has its cells swept when the back end is back, and the cells take Nova's
own path until then.
""",
    ),
    cfg.FloatOpt(
        "beat_interval_seconds",
        default=3.0,
        min=0.2,
        max=30,
        help="""
Interval between the heartbeats that each reporter and each scheduler writes to
the back end: about four small statements each. Raise it, and the two bounds with it, where
very many API workers report.

Related options:

* ``reporter_bound_seconds`` and ``feed_bound_seconds`` must be at least three
  times as long.
""",
    ),
    cfg.FloatOpt(
        "exit_flush_seconds",
        default=5.0,
        min=0,
        max=60,
        help="""
How long a process that ends (nova-manage above all) waits for its last changes
to be published. What could not be published is found by the next sweep.
""",
    ),
    cfg.FloatOpt(
        "sweep_interval_seconds",
        default=600.0,
        min=1,
        help="""
How often one conductor of each cell compares the cell's tables with the
synchronizer and reports what was missed (rows written by a service without the
plugin, or in raw SQL). A sweep runs at once when there is reason for it: a
reporter died, or heartbeats arrived that nobody reported.
""",
    ),
    cfg.IntOpt(
        "sweep_page_rows",
        default=500,
        min=1,
        max=10_000,
        help="Rows that a sweep reads at a time.",
    ),
    cfg.FloatOpt(
        "sweep_pause_seconds",
        default=0.05,
        min=0,
        max=10,
        help="Pause of a sweep between two pages, to spare the cell's database.",
    ),
    cfg.FloatOpt(
        "delta_sweep_margin_seconds",
        default=120.0,
        min=1,
        help="""
Margin of the search for what an API worker wrote and did not report before it
died: rows are compared that were written later than its last heartbeat less this
time. Rows carry the time of their writer's clock: raise it where clocks of API
nodes and of the back end may differ by more than a minute (Nova itself takes
services for dead then), or where the databases' transactions last longer.
""",
    ),
]

FRESHNESS_OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "feed_bound_seconds",
        default=10.0,
        min=0.5,
        help="""
How long a scheduler trusts the feed of changes without proof. Each scheduler
writes a canary record every ``beat_interval_seconds`` and expects it back by the
feed; when none came back for this long, every cell takes Nova's own path until
one does. At least three times ``beat_interval_seconds``; lower it to notice a
feed that stands still sooner.
""",
    ),
    cfg.FloatOpt(
        "reporter_bound_seconds",
        default=15.0,
        min=1,
        help="""
How long a reporter may send no heartbeat before the states of its cells are no
longer trusted, and the cells take Nova's own path. At least three times
``beat_interval_seconds``; raise it where control-plane processes are often
paused for longer.
""",
    ),
]
