# SPDX-License-Identifier: Apache-2.0
"""Options of the SQL driver: the frozen value, and how oslo.config fills it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from oslo_config import cfg
from oslo_db import options as oslo_db_options

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import schema
from nova_nodb_scheduler.synchronizer.drivers.support import driver_options, polling

GROUP = "nodb_sqlalchemy"

#: oslo.db's options that reach the engine. Its others (replicas, retries of
#: enginefacade) would be read by nobody here, so they are not registered.
_ENGINE_OPTIONS = (
    "connection_debug",
    "connection_parameters",
    "connection_recycle_time",
    "connection_trace",
    "max_overflow",
    "max_pool_size",
    "mysql_sql_mode",
    "mysql_wsrep_sync_wait",
    "pool_timeout",
    "sqlite_synchronous",
)


@attrs.frozen
class SQLOptions:
    """How the SQL driver is configured.

    :param connection: SQLAlchemy URL
    :param poll_interval_seconds: between two looks at the sequence while
        nothing changes
    :param busy_poll_interval_seconds: the same while changes come; see
        :meth:`.polling.Intervals.of`
    :param timeout_seconds: bound of one call
    :param max_payload_bytes: largest payload accepted
    :param ordering: how writes get their place in the feed, one of
        :data:`.schema.ORDERINGS`
    :param auto_upgrade: let ``open()`` migrate the schema of a server too
    :param engine: keyword arguments for oslo.db's ``create_engine``
    :param cloud_name: whose records the database holds; see :mod:`.epochs`
    """

    connection: str
    poll_interval_seconds: float = 0.1
    timeout_seconds: float = 5.0
    max_payload_bytes: int = 1 << 20
    auto_upgrade: bool = False
    ordering: str = schema.COUNTER
    engine: Mapping[str, Any] = attrs.field(factory=dict)
    busy_poll_interval_seconds: float | None = None
    cloud_name: str = ""

    def poll_intervals(self) -> polling.Intervals:
        """Return when the feed is looked at.

        :raises ConfigurationError: the busy interval is longer than the idle one
        """
        return polling.Intervals.of(
            GROUP, self.poll_interval_seconds, self.busy_poll_interval_seconds
        )


OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "connection",
        default="sqlite:///$state_path/nodb.sqlite",
        secret=True,
        help="""
The database that carries host states between services, as an SQLAlchemy URL.

The default, an SQLite file, needs no server, but every service that runs the
plugin must then be on this one machine. For several machines name a MariaDB /
MySQL (``mysql+pymysql://user:password@host/nodb?charset=utf8mb4``) or
PostgreSQL (``postgresql+psycopg://user:password@host/nodb``) database of its
own and run ``nova-nodb-manage db sync``. TLS is set as everywhere with oslo.db,
for example ``&ssl_ca=/etc/ssl/ca.pem`` (MariaDB) or
``?sslmode=verify-full&sslrootcert=/etc/ssl/ca.pem`` (PostgreSQL).

Point all writers at one Galera node (a proxy with a single active server), or
set ``ordering = sequencer``: in counter mode writes through several nodes work,
but conflict on every commit.
""",
    ),
    cfg.StrOpt(
        "cloud_name",
        default="",
        max_length=255,
        help="""
Name of this cloud, kept in the database by the first service that opens it with
one: a service whose ``cloud_name`` differs is refused, before two clouds write
each other's records. All services of a cloud must have the same value. Set it
where more than one cloud has its databases on a server, or could be given this
one's ``connection`` by mistake. A database that has no name takes the first.
""",
    ),
    cfg.StrOpt(
        "ordering",
        default=schema.COUNTER,
        choices=[
            (
                schema.COUNTER,
                (
                    "every write takes its number from one row, which writers lock in turn: the "
                    "shortest delay, for a single server or Galera with one active node"
                ),
            ),
            (
                schema.SEQUENCER,
                (
                    "writes lock their own records only, and are numbered some 20 ms later: for "
                    "a Galera cluster that is written through several nodes"
                ),
            ),
        ],
        help="""
How writes get their place in the order in which schedulers see them.

Every service must have the same value. It is kept in the database with the
first record: a service that is configured otherwise does not start. To change
it, carry the records into an empty database with
``nova-nodb-manage synchronizer move``.
""",
    ),
    cfg.FloatOpt(
        "poll_interval_seconds",
        default=0.1,
        min=0.01,
        max=1.0,
        help="""
Interval at which a scheduler worker polls the database while no changes come, in
seconds.

Each poll reads one row by primary key: 10 statements per second by default. It
is the longest delay that the feed adds to the first change after a quiet time;
raise it to spare the database. While changes come,
``busy_poll_interval_seconds`` is what matters.
""",
    ),
    cfg.FloatOpt(
        "busy_poll_interval_seconds",
        min=0.005,
        max=1.0,
        sample_default=polling.BUSY_SECONDS,
        help="""
Interval at which a scheduler worker polls the database while changes come all
the time, in seconds; not more than ``poll_interval_seconds``, which is the
default where that is less than 0.025.

In between a worker polls about twice for each change, so a quiet cloud costs no
more than the idle interval says. It is the delay that the feed adds to most
changes of a busy cloud. Lower it for fresher states; a poll costs worker and
database together about a millisecond, so raise it where there are many workers.
""",
    ),
    cfg.FloatOpt(
        "timeout_seconds",
        default=5.0,
        min=1.0,
        max=60.0,
        help="""
How long one call to the database may take, in seconds.

Each exchange with the server is given half of it, so that finding a dead
connection and making a new one fits in. It is also the time after which the
server ends the transaction of a client that went silent, and with it its hold
on all other writers. Raise it where commits stall for seconds.
""",
    ),
    cfg.IntOpt(
        "max_payload_bytes",
        default=1 << 20,
        min=1 << 16,
        max=1 << 26,
        help="""
Largest record that is accepted, in bytes.

A host's state is some kilobytes. With MariaDB / MySQL its ``max_allowed_packet``
must be more than twice as large; the service says so at start otherwise.
""",
    ),
    cfg.BoolOpt(
        "auto_upgrade",
        default=False,
        help="""
Migrate the schema when a service starts.

Off, a MariaDB or PostgreSQL database is migrated by ``nova-nodb-manage db sync``
only, as with every OpenStack service. An SQLite file is always created and
migrated at start.
""",
    ),
    *(option for option in oslo_db_options.database_opts if option.name in _ENGINE_OPTIONS),
]


def read(conf: cfg.ConfigOpts) -> SQLOptions:
    """Read the driver's options, registering them first where need be.

    :raises ConfigurationError: the connection refers to an option that is unknown
    """
    conf.register_opts(OPTS, group=GROUP)
    try:
        values = driver_options.read(conf, GROUP, [option.dest for option in OPTS])
    except errors.ConfigurationError as error:
        if "state_path" not in str(error.__cause__):
            raise
        raise driver_options.refusal(
            GROUP,
            "connection",
            "sqlite:///$state_path/nodb.sqlite",
            f"{error.__cause__}; name the file in full",
        ) from error
    engine = {name: values.pop(name) for name in _ENGINE_OPTIONS}
    return SQLOptions(**values, engine=engine)
