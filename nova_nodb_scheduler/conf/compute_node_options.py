# SPDX-License-Identifier: Apache-2.0
"""The option that says whose word counts for compute nodes."""

from __future__ import annotations

from oslo_config import cfg

COMPUTE_NODE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "compute_nodes",
        default="mirror",
        choices=[
            ("mirror", "Nova's table counts, as in stock Nova; records are made of it"),
            ("store", "records count and answer all reads; the table is written behind them"),
            ("retired", "records count; the table is away, and no statement names it"),
        ],
        help="""
Whose word counts for compute nodes: Nova's table ``compute_nodes`` in each
cell's database, or the back end. With ``retired`` nothing of the control plane
reads or writes that table any more; a save of a compute node is two or three
statements on the back end, and reads are answered from memory behind one question to
it.

Every service of the control plane must have the same value, and each cell is
brought there and back with ``nova-nodb-manage compute-nodes retire`` and
``restore``, while they are stopped. The mode of a cell is recorded in the back end:
a conductor or a scheduler that is configured otherwise refuses to start, and any
other service by its first call.

With ``store`` and ``retired`` the back end must be durable (``sqlalchemy`` or
``etcd``) and in no cell's own database, and it is as necessary as Nova's databases
are: while it does not answer, Nova's calls for compute nodes fail as with a database
that is down. A service whose plugin cannot be activated does not start, whatever the
reason, nova-manage included; a service without the plugin must not run.
""",
    ),
]
