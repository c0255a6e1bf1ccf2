# SPDX-License-Identifier: Apache-2.0
"""The group ``[nodb_scheduler]``, put together from its parts."""

from __future__ import annotations

from oslo_config import cfg

from nova_nodb_scheduler.conf import (
    activation_options,
    checkpoint_options,
    claim_options,
    compute_node_options,
    decision_options,
    queue_options,
    report_options,
    zaqar_options,
)

GROUP = "nodb_scheduler"

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
    cfg.FloatOpt(
        "start_timeout_seconds",
        default=45.0,
        min=0,
        help="""
How long a scheduler worker that starts takes no request because host states,
claims or the mirror of Placement are not proved yet. Requests wait in the
queue meanwhile, or other schedulers take them; heartbeats and the plugin's own
RPC API run. When it has passed, requests are taken all the same, what is not
proved goes Nova's own path, and an ERROR in the log names it.

Nova's conductor gives a request up if no scheduler has taken it within
``[DEFAULT] rpc_response_timeout`` (60 s by default). So where a worker may be
the only one, keep this below that by some ten seconds, for the time that the
process itself takes to start: the default is for that. On a small machine a
start took 13 s at 10,000 hosts, and 67 s at 100,000: there run several
schedulers and raise this to some minutes, or raise both options. 0 takes
requests at once.
""",
    ),
]

RECORD_OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "max_record_mib",
        default=8,
        min=1,
        max=64,
        help="""
Largest record that is written or read, in MiB of JSON text. Decoded, it may
take four times as much memory, which is estimated before it is decoded; a
process holds at most twice that of records decoded at once when it reads all
of them.

What is larger is refused by its writer (counted in ``nodb_records_refused``)
and kept aside by readers (``nodb_quarantined_records``): its cell takes Nova's
own path. It is a bound against damage and attacks: a compute node's record has
some 5 kB, an aggregate 30 bytes for each of its hosts. Raise it where a warning
in the log names a record that is too large for it, in all processes alike;
lower it where little memory is to be had.
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
        help="""
Most bytes that the states of one update_host_states call may take once they are
decoded. It is the memory of lists, mappings and texts that counts, not their
size on the wire: some hundred bytes of JSON can hold kilobytes. Raise it only
where a program's own records need it: every scheduler worker decodes them.
""",
    ),
    cfg.FloatOpt(
        "rpc_max_updates_per_second",
        default=50.0,
        min=0.1,
        help="Most update_host_states calls that one scheduler worker takes a second.",
    ),
    cfg.IntOpt(
        "rpc_max_explanations",
        default=1,
        min=1,
        max=64,
        help="""
Explanations (``nova-nodb-manage explain``, the RPC method of that name) that
one scheduler worker makes at a time. Each costs what a request costs, of the
time in which that worker could place servers; a call above the number is
refused at once.
""",
    ),
    cfg.IntOpt(
        "rpc_max_explained_places",
        default=10_000_000,
        min=1000,
        help="""
Most servers times hosts that one explanation may be for: 1,000 servers over
10,000 hosts, or 100 over 100,000. Raise it where larger requests are to be
explained, with ``rpc_explain_seconds``.
""",
    ),
    cfg.FloatOpt(
        "rpc_explain_seconds",
        default=15.0,
        min=1.0,
        help="""
How long one explanation may take. It is looked at between two of its servers:
one that takes longer is given up, and the caller told.
""",
    ),
    cfg.IntOpt(
        "rpc_page_size",
        default=500,
        min=1,
        max=10_000,
        help="Most host states in one page of get_host_states or list_host_states.",
    ),
    cfg.IntOpt(
        "rpc_max_page_bytes",
        default=4 * 1024 * 1024,
        min=64 * 1024,
        max=64 * 1024 * 1024,
        help="""
Most bytes of JSON in one page: a page of more ends earlier, behind one record
at least. On the bus they are about half as many again (JSON within JSON), twice
as many where the records hold JSON themselves, and RabbitMQ 4 refuses messages
above 16 MiB (``max_message_size``). Raise it only with that.
""",
    ),
]

OBSERVE_OPTS: list[cfg.Opt] = [
    cfg.HostAddressOpt(
        "metrics_host",
        default="127.0.0.1",
        help="""
Address on which Prometheus metrics are served, on the ports below. One that
this machine does not have (yet) is tried again every few seconds and logged;
it stops nothing.
""",
    ),
    cfg.PortOpt(
        "metrics_port",
        help="""
Port on which nova-scheduler serves Prometheus metrics; unset, none are. All
workers of a machine are served there together, each by its number, by one of
them; should that one end, another takes the port within five seconds.
""",
    ),
    cfg.PortOpt(
        "conductor_metrics_port",
        help="""
As ``metrics_port``, for nova-conductor: what it reports to the schedulers, and
whether it can. A port of its own, for services of one machine often are of
several users or containers.
""",
    ),
    cfg.PortOpt(
        "api_metrics_port",
        help="""
As ``conductor_metrics_port``, for the processes of nova-api, under a WSGI
server, too. Each is there from the first change that it writes.
""",
    ),
    cfg.StrOpt(
        "metrics_directory",
        default="$state_path/nodb-metrics",
        help="""
Directory in which the workers of a machine that share a port find one another
(a lock and a socket each; it may be emptied at a boot). It is made with mode
0700 and must be the service's own: set it where several users run the service,
or where ``state_path`` cannot be written. Where it cannot be used, the log says
so and only the worker that has the port is served.
""",
    ),
]

NODB_OPTS: list[cfg.Opt] = [
    *GENERAL_OPTS,
    *compute_node_options.COMPUTE_NODE_OPTS,
    *report_options.REPORTER_OPTS,
    *report_options.FRESHNESS_OPTS,
    *decision_options.CANDIDATE_OPTS,
    *claim_options.CLAIM_OPTS,
    *decision_options.CHOICE_OPTS,
    *RECORD_OPTS,
    *checkpoint_options.CHECKPOINT_OPTS,
    *RPC_OPTS,
    *OBSERVE_OPTS,
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; idempotent."""
    conf.register_opts(activation_options.ACTIVATION_OPTS)
    conf.register_opts(NODB_OPTS, group=GROUP)
    conf.register_opts(queue_options.QUEUE_OPTS, group=queue_options.GROUP)
    conf.register_opts(zaqar_options.ZAQAR_OPTS, group=zaqar_options.GROUP)
