# SPDX-License-Identifier: Apache-2.0
"""Options of requests that wait for room: the group ``[nodb_queue]``."""

from __future__ import annotations

from oslo_config import cfg

GROUP = "nodb_queue"

QUEUE_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "key",
        default=[],
        secret=True,
        help="""
Key that requests are encrypted with while they wait: they hold what the user sent,
a password for the server and files among it, and the user's token. Make one with
``nova-nodb-manage queue new-key``. May be given several times: the first encrypts,
all of them decrypt, so that a new one goes first and the old one stays until what
was encrypted with it has left the queue. All conductors, schedulers and APIs need
the same ones. Without a key no request may wait, and services that are configured
with ``scheduler_driver = nodb_queue`` refuse to start.
""",
    ),
    cfg.IntOpt(
        "default_wait_seconds",
        default=0,
        min=0,
        max=31_536_000,
        help="""
How long a request waits for room of which neither its flavor (extra spec
``nodb:wait``), nor its user (scheduler hint ``nodb_wait``), nor ``project_wait_seconds``
says anything. 0: it does not wait, and ends in NoValidHost as in Nova.
""",
    ),
    cfg.DictOpt(
        "project_wait_seconds",
        default={},
        help="""
How long requests of some projects wait, by project id, where neither flavor nor
hint says so. Example: ``0123456789abcdef0123456789abcdef:3600``.
""",
    ),
    cfg.IntOpt(
        "max_wait_seconds",
        default=604_800,
        min=1,
        max=31_536_000,
        help="""
The longest that anybody may wait. A user's hint beyond it is refused; a flavor's or
a project's is cut to it. The user's token is used when the servers are built at
last: waits beyond a token's life need service users (``[service_user]
send_service_user_token``), and beyond Keystone's ``allow_expired_window`` builds fail.
""",
    ),
    cfg.BoolOpt(
        "from_api",
        default=False,
        help="""
Whether nova-api puts requests that may wait into the queue itself, before it answers the
user, instead of casting them to a conductor. The creation of a server then needs neither
conductor, nor scheduler, nor message bus; it is built as soon as they are there. Each such
request costs the API some writes to the back end, and is tried one wake-up of a scheduler
later. Each nova-api counts the queue every 2 seconds at most while requests come, less often
the longer that takes. Where ``max_pending`` or ``max_pending_per_project`` is reached, and
where the back end does not answer, conductors are asked as ever.
""",
    ),
    cfg.ListOpt(
        "classes",
        default=["high:100", "normal:50", "low:0"],
        help="""
Priority classes, each with its number: a greater one goes first. Who may use which is
a matter of policy (``nodb:class:NAME``).
""",
    ),
    cfg.StrOpt(
        "default_class",
        default="normal",
        help="Class of requests that name none (extra spec ``nodb:class``, hint ``nodb_class``).",
    ),
    cfg.DictOpt(
        "project_weights",
        default={},
        help="""
Weights of projects in fair share, by project id; 1.0 for all others. Among requests
of a class the project goes first that has the least of the cloud by its weight: of a
project's servers the resource counts of which it has the greatest part.
""",
    ),
    cfg.StrOpt(
        "order",
        default="fair",
        choices=[
            ("fair", "by class, then by the projects' shares, then by age"),
            ("fifo", "by class, then by age"),
        ],
        help="Which of the requests that wait goes first.",
    ),
    cfg.StrOpt(
        "discipline",
        default="best_effort",
        choices=[
            ("best_effort", "who fits may go before who does not"),
            ("strict", "nobody of a class goes before its first"),
        ],
        help="""
What becomes of requests behind one that does not fit. With ``best_effort`` smaller
ones go on (backfill), and a host is held for the first one once it has waited for
``hold_after_seconds``. ``strict`` leaves room idle rather.
""",
    ),
    cfg.FloatOpt(
        "aging_seconds",
        default=3600.0,
        min=0,
        help="""
The number of a request's class counts as one more for every such time that it has
waited, and once it has reached that of a higher class, the request is one of that: so
nobody waits for ever behind a stream of higher classes. Within a class ``order``
decides, whatever the numbers. 0: never.
""",
    ),
    cfg.FloatOpt(
        "hold_after_seconds",
        default=60.0,
        min=0,
        help="""
How long the first request of a class waits before a host is held for it: whatever is
freed there goes to nobody else, until it fits or ``hold_seconds`` have passed. 0: at
once.
""",
    ),
    cfg.FloatOpt(
        "hold_seconds",
        default=600.0,
        min=1,
        help="How long a host is held for one request before another one is tried.",
    ),
    cfg.IntOpt(
        "max_pending",
        default=100_000,
        min=1,
        help="""
Servers that may wait in all. Beyond it requests end in NoValidHost at once, and say
why. Each takes about 3 kB on the back end, and 1 kB in each scheduler.
""",
    ),
    cfg.IntOpt(
        "max_pending_per_project",
        default=1000,
        min=1,
        help="Servers of one project that may wait. Nova's quotas do not count them.",
    ),
    cfg.FloatOpt(
        "lease_seconds",
        default=30.0,
        min=1,
        help="""
How long a conductor that places a request, or was told to, may be silent before the
request is given to another. It says that it lives three times as often.
""",
    ),
    cfg.FloatOpt(
        "least_backoff_seconds",
        default=1.0,
        min=0,
        help="Pause after an attempt that found no room; doubled with each one in a row.",
    ),
    cfg.FloatOpt(
        "most_backoff_seconds",
        default=60.0,
        min=0,
        help="The longest such pause.",
    ),
    cfg.StrOpt(
        "zaqar_queue",
        default="",
        regex=r"^[A-Za-z0-9_-]{0,64}$",
        help="""
Name of the Zaqar queue in which a project finds what becomes of its requests that wait:
that one was parked, dispatched (hosts are looked for), placed, expired or cancelled.
Example: ``nodb-waiting``. Each project has its own queue by that name, which the first
message makes. Empty: nobody is told. How Zaqar is reached is said in
``[nodb_queue_zaqar]``.

Nothing waits for Zaqar. Events that it does not take are lost, counted
(``nodb_tenant_events_lost_total``) and said in the log. All schedulers and conductors
need the same value.
""",
    ),
    cfg.IntOpt(
        "zaqar_message_ttl_seconds",
        default=3600,
        min=60,
        max=1_209_600,
        help="""
How long Zaqar keeps a message that nobody takes away. Raise it where projects look
seldom; Zaqar refuses what is above its own ``max_message_ttl``.
""",
    ),
    cfg.IntOpt(
        "zaqar_max_backlog",
        default=10_000,
        min=1,
        max=1_000_000,
        help="""
Events that wait in a process for Zaqar at most; more of them are lost. Each takes about
1 kB. Raise it where bursts are lost (``nodb_tenant_events_lost_total{why="overflow"}``)
although Zaqar answers.
""",
    ),
]
