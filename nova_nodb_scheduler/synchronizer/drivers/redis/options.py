# SPDX-License-Identifier: Apache-2.0
"""Options of the redis driver."""

from __future__ import annotations

import functools
import urllib.parse

import attrs
from oslo_config import cfg

from nova_nodb_scheduler.synchronizer.drivers.support import driver_options, transport_security

GROUP = "nodb_redis"

SCHEMES = ("redis", "rediss", "unix")
DEFAULT_PORT = 6379

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "url",
        default="redis://127.0.0.1:6379/0",
        help="""
The server: ``redis://host:port/database``, ``rediss://`` for TLS, or
``unix:///path`` for a socket. One server, the primary: a replica is refused,
and nothing fails over by itself, because a replica may lack acknowledged
writes. Give it a server of its own, with ``maxmemory-policy noeviction``.

Credentials belong into ``username`` and ``password``.
""",
    ),
    cfg.StrOpt(
        "username",
        help="""
User of the server's access control list; unset for the default user. It needs
the commands named in the administration guide, on ``key_prefix`` alone.
""",
    ),
    cfg.StrOpt(
        "password",
        secret=True,
        help="Password of ``username``, or of the default user. Unset: none is sent.",
    ),
    cfg.StrOpt(
        "tls_cafile",
        help="File of the certificate authorities to trust with ``rediss://``; the system's "
        "if unset.",
    ),
    cfg.StrOpt(
        "tls_certfile",
        help="Certificate of this client, where the server asks for one. Needs ``tls_keyfile``.",
    ),
    cfg.StrOpt("tls_keyfile", help="Private key of ``tls_certfile``."),
    *driver_options.CLOUD_OPTS,
    cfg.FloatOpt(
        "timeout_seconds",
        default=5.0,
        min=0.1,
        help="""
Longest wait for a connection, and for one answer of the server. Raise it on
slow networks; while the server is down, each call takes as long as this.
""",
    ),
    cfg.FloatOpt(
        "wake_check_seconds",
        default=1.0,
        min=0.05,
        help="""
How often a waiting scheduler looks by itself whether something is new. Changes
wake it at once; this bounds the delay where a wake-up is lost, and the time in
which a server that was emptied is noticed while nobody writes.
""",
    ),
]

#: Of an option of this group; see :func:`.driver_options.refusal`.
refusal = functools.partial(driver_options.refusal, GROUP)


@attrs.frozen
class Address:
    """Where the server is.

    :param path: of a unix socket; empty for TCP
    """

    host: str
    port: int
    path: str
    database: int
    tls: bool

    def __str__(self) -> str:
        return f"{self.path or f'{self.host}:{self.port}'}/{self.database}"


@attrs.frozen
class RedisOptions:
    """Options of one client; see :data:`OPTS`."""

    url: str = "redis://127.0.0.1:6379/0"
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    tls_cafile: str | None = None
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    key_prefix: str = "nodb"
    cloud_name: str = ""
    timeout_seconds: float = 5.0
    wake_check_seconds: float = 1.0

    def address(self) -> Address:
        """Return the server's address.

        :raises ConfigurationError: the URL is none of ours; it is not
            repeated where it might hold a password
        """
        parts = urllib.parse.urlsplit(self.url)
        if "@" in self.url:
            raise refusal("url", "(hidden)", "put credentials into 'username' and 'password'.")
        if parts.scheme not in SCHEMES:
            raise refusal("url", self.url, f"begin it with one of: {', '.join(SCHEMES)}.")
        if parts.query or parts.fragment:
            # redis-py takes options here, its own retries among them.
            raise refusal("url", self.url, "leave out everything behind the database.")
        tcp = parts.scheme != "unix"
        try:
            port = parts.port or DEFAULT_PORT
            database = int(parts.path.strip("/") or 0) if tcp else 0
        except ValueError as error:
            raise refusal(
                "url", self.url, "write it as redis://host:port/database-number."
            ) from error
        if bool(parts.hostname) != tcp or not (tcp or parts.path):
            raise refusal("url", self.url, "name a host, or with unix:// a path.")
        return Address(
            parts.hostname or "",
            port,
            "" if tcp else parts.path,
            database,
            parts.scheme == "rediss",
        )

    def check(self) -> None:
        """Refuse what cannot work.

        :raises ConfigurationError: a bad URL, prefix or pair of files
        """
        address = self.address()
        driver_options.check_key_prefix(GROUP, self.key_prefix)
        if self.username and self.password is None:
            raise refusal("username", self.username, "set 'password', too.")
        for name in ("tls_cafile", "tls_certfile", "tls_keyfile"):
            value = getattr(self, name)
            if value and not address.tls:
                raise refusal(name, value, "it needs a 'url' that begins with rediss://.")
        if bool(self.tls_certfile) != bool(self.tls_keyfile):
            raise refusal("tls_certfile", self.tls_certfile, "set it together with 'tls_keyfile'.")

    def warn_of_plain_password(self) -> None:
        """Say so where the password would go over a network as it is."""
        address = self.address()
        if self.password and not address.tls:
            transport_security.warn_of_plain_passwords(
                f"[{GROUP}] url", [address.host], "begin the URL with rediss://, for TLS"
            )
