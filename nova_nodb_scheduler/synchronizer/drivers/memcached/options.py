# SPDX-License-Identifier: Apache-2.0
"""Options of the memcached driver."""

from __future__ import annotations

import functools

import attrs
from oslo_config import cfg

from nova_nodb_scheduler.synchronizer.drivers.support import driver_options, polling

GROUP = "nodb_memcached"

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "servers",
        default=["127.0.0.1:11211"],
        help="""
The memcached server, as ``host:port`` or the path of a unix socket. Exactly
one: compare-and-set over several servers cannot be made safe, because a client
that fails over reads stale records when the first server returns.

Give it a server of its own, started with ``-M`` (refuse instead of evict) and
ample ``-m``: what another service evicts or flushes is lost here too.
""",
    ),
    *driver_options.CLOUD_OPTS,
    cfg.FloatOpt(
        "timeout_seconds",
        default=5.0,
        min=0.1,
        help="""
Longest wait for one answer of the server. Raise it on slow networks; while the
server is down, each call takes as long as this.
""",
    ),
    cfg.FloatOpt(
        "poll_interval_seconds",
        default=0.1,
        min=0.01,
        help="""
Interval at which a scheduler worker polls the server while no changes come, in
seconds. It is the longest delay that the feed adds to the first change after a
quiet time; each poll is one request of about 100 bytes. While changes come,
``busy_poll_interval_seconds`` is what matters.
""",
    ),
    cfg.FloatOpt(
        "busy_poll_interval_seconds",
        min=0.005,
        sample_default=polling.BUSY_SECONDS,
        help="""
Interval at which a scheduler worker polls the server while changes come all the
time, in seconds; not more than ``poll_interval_seconds``, which is the default
where that is less than 0.025. In between a worker polls about twice for each
change. It is the delay that the feed adds to most changes of a busy cloud: lower
it for fresher states, raise it to spare the processors where there are many
workers.
""",
    ),
    cfg.FloatOpt(
        "fence_after_seconds",
        default=1.0,
        min=0.05,
        help="""
How long readers wait for a writer that took a place in the feed and did not
use it (it crashed, or is paused) before they shut it out. A writer that is
slower than this repeats its write. The feed stands still meanwhile, so the
delay of a change after a crash is about this long.
""",
    ),
    cfg.IntOpt(
        "log_ttl_seconds",
        default=3600,
        min=60,
        max=2_592_000,
        help="""
How long the server keeps the log of changes that schedulers follow, in seconds.
A scheduler that lags by more than half of it reads everything again. Raise it if
schedulers are often paused for longer; each change costs about 150 bytes of the
server's memory for so long.
""",
    ),
    cfg.BoolOpt(
        "tls_enabled",
        default=False,
        help="Speak TLS to the server. Related option: ``tls_cafile``.",
    ),
    cfg.StrOpt(
        "tls_cafile",
        help="File of the certificate authorities to trust; the system's if unset. The server's "
        "certificate must name the host of ``servers``. Needs ``tls_enabled``.",
    ),
]

#: Of an option of this group; see :func:`.driver_options.refusal`.
refusal = functools.partial(driver_options.refusal, GROUP)


@attrs.frozen
class MemcachedOptions:
    """Options of one client; see :data:`OPTS`."""

    servers: tuple[str, ...] = attrs.field(default=("127.0.0.1:11211",), converter=tuple)
    key_prefix: str = "nodb"
    cloud_name: str = ""
    timeout_seconds: float = 5.0
    poll_interval_seconds: float = 0.1
    busy_poll_interval_seconds: float | None = None
    fence_after_seconds: float = 1.0
    log_ttl_seconds: int = 3600
    tls_enabled: bool = False
    tls_cafile: str | None = None

    def check(self) -> None:
        """Refuse what cannot work.

        :raises ConfigurationError: several servers or none, a bad prefix,
            authorities without TLS, or a busy interval that is longer than the
            idle one
        """
        if len(self.servers) != 1:
            raise refusal(
                "servers",
                ",".join(self.servers),
                "name exactly one memcached server; records cannot be spread over "
                "several. For high availability use the sqlalchemy driver.",
            )
        driver_options.check_key_prefix(GROUP, self.key_prefix)
        if self.tls_cafile and not self.tls_enabled:
            raise refusal("tls_cafile", self.tls_cafile, "set 'tls_enabled' to true, too.")
        self.poll_intervals()

    def poll_intervals(self) -> polling.Intervals:
        """Return when the feed is looked at.

        :raises ConfigurationError: the busy interval is longer than the idle one
        """
        return polling.Intervals.of(
            GROUP, self.poll_interval_seconds, self.busy_poll_interval_seconds
        )
