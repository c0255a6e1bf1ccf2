# SPDX-License-Identifier: Apache-2.0
"""Options of the group ``[nodb_scheduler]`` and the two that switch it on."""

from __future__ import annotations

from oslo_config import cfg

GROUP = "nodb_scheduler"

#: Nova dropped these options; the plugin registers them again.
ACTIVATION_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "scheduler_driver",
        default="filter_scheduler",
        help="""
The scheduler that nova-scheduler runs: an entry point of the group
``nova.scheduler.driver``, or ``filter_scheduler`` for Nova's own.

``nodb_scheduler`` places servers from host states held in memory. Only
nova-scheduler looks at this option; conductors and APIs report states
whenever the plugin is loaded, whatever its value. An unknown name stops
the service at start.

Related options:

* ``[oslo_messaging_notifications] driver`` must hold ``nodb_scheduler``,
  which is what makes Nova's processes load the plugin.
""",
    ),
    cfg.StrOpt(
        "scheduler_host_manager",
        default="nodb_host_manager",
        help="""
The host manager of the nodb scheduler: an entry point of the group
``nova.scheduler.host_manager``. It has no effect on Nova's own scheduler.
""",
    ),
]

GENERAL_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "synchronizer",
        default="sqlalchemy",
        help="""
How host states travel from the processes that write them to the schedulers:
an entry point of the group ``nova_nodb_scheduler.synchronizer``.

``sqlalchemy`` keeps them in a database of their own, ``memcached`` in one
memcached server and ``redis`` in one Redis or Valkey (nothing survives its
restart: schedulers take Nova's own path until the reporters have published
again), ``etcd`` in an etcd cluster, ``memory`` inside one process (for tests).
All control-plane services must have the same value.
""",
    ),
    cfg.StrOpt(
        "cell_uuid",
        help="""
The cell whose database ``[database] connection`` names. Needed only by
conductors that have no API database; the others look it up in the cell
mappings. A conductor that can do neither refuses to start.
""",
    ),
]

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
How often reporters and schedulers say that they are alive, on the back end:
about four small statements each. Raise it, and the two bounds with it, where
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
]

FRESHNESS_OPTS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "feed_bound_seconds",
        default=10.0,
        min=0.5,
        help="""
How long a scheduler trusts its feed without proof. Each scheduler writes a
canary and expects it back; when none came back for this long, every cell takes
Nova's own path until the feed is proved again.
""",
    ),
    cfg.FloatOpt(
        "reporter_bound_seconds",
        default=15.0,
        min=1,
        help="""
How long a reporter may be silent before the states of its cells are no longer
trusted. Several times beat_interval_seconds.
""",
    ),
]

DECISION_OPTS: list[cfg.Opt] = [
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

Claims are made for requests decided from memory (``candidates = memory``).
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
claimed is free again after this time. Longer than ``claim_deadline_seconds``.
""",
    ),
    cfg.StrOpt(
        "claim_spread",
        default="auto",
        choices=[
            ("auto", "schedulers prefer different hosts of those that weigh nearly the same"),
            ("off", "every scheduler takes the best host, as Nova orders them"),
        ],
        help="""
How several schedulers keep out of one another's way. All of them find the same
best host, and all but one lose the claim on it and go to the next. With
``auto`` each host belongs to one of the living schedulers, which prefers its
own among hosts whose weights differ by no more than 0.05 from the best. That
deviates from Nova's order where hosts weigh nearly the same; a scheduler worker
that is alone keeps it always. Without ``claims`` it has no effect.
""",
    ),
    cfg.FloatOpt(
        "allocation_batch_window_seconds",
        default=0.0,
        min=0,
        max=1,
        help="""
How long the allocations of a request wait for those of others, to go to
Placement in one call. With 0 nobody waits: only what queues up while as many
calls as allowed are under way, or one to the same host, shares the next one.
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

``exact`` asks about all of these hosts, or about fewer where it is proved that
the others change nothing: where the hosts with the least and the greatest
weights pass. ``lazy`` asks in the order of weights, and deviates from Nova in
this: weights are scaled by the hosts that the vectorised filters left, not by
those which pass all, so that another host may come first where several weighers
compete; a filter that fails at a host which nobody looked at is not noticed; and
a filter is not asked about every host for every request. The chosen host passes
all filters in both.

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
Memory per scheduler worker for what requests alike share: about 2 MiB each at
100,000 hosts.
""",
    ),
]

RPC_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "rpc_topic",
        default="nodb_scheduler",
        help="Topic of the plugin's own RPC API, apart from nova-scheduler's.",
    ),
    cfg.IntOpt(
        "rpc_max_records_per_update",
        default=1000,
        min=1,
        help="Most records that one update_host_states call may carry.",
    ),
    cfg.IntOpt(
        "rpc_max_update_bytes",
        default=8 * 1024 * 1024,
        min=1024,
        help="Most bytes of encoded states that one update_host_states call may carry.",
    ),
    cfg.FloatOpt(
        "rpc_max_updates_per_second",
        default=50.0,
        min=0.1,
        help="Most update_host_states calls that one scheduler worker takes a second.",
    ),
    cfg.IntOpt(
        "rpc_page_size",
        default=500,
        min=1,
        max=10_000,
        help="Most host states in one page of get_host_states.",
    ),
]

OBSERVE_OPTS: list[cfg.Opt] = [
    cfg.HostAddressOpt(
        "metrics_host",
        default="127.0.0.1",
        help="Address on which Prometheus metrics are served, with metrics_port.",
    ),
    cfg.PortOpt(
        "metrics_port",
        help="""
Port on which each scheduler worker serves Prometheus metrics; unset, none is
served. Of several workers on one host each takes the next free port.
""",
    ),
]

NODB_OPTS: list[cfg.Opt] = [
    *GENERAL_OPTS,
    *REPORTER_OPTS,
    *FRESHNESS_OPTS,
    *DECISION_OPTS,
    *RPC_OPTS,
    *OBSERVE_OPTS,
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; idempotent."""
    conf.register_opts(ACTIVATION_OPTS)
    conf.register_opts(NODB_OPTS, group=GROUP)
