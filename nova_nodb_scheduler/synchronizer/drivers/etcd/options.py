# SPDX-License-Identifier: Apache-2.0
"""Options of the etcd driver."""

from __future__ import annotations

import functools
import urllib.parse

import attrs
from oslo_config import cfg

from nova_nodb_scheduler.synchronizer.drivers.support import driver_options, transport_security

GROUP = "nodb_etcd"
DEFAULT_ENDPOINT = "http://127.0.0.1:2379"

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "endpoints",
        default=[DEFAULT_ENDPOINT],
        help="""
Client URLs of the members of **one** etcd cluster, such as
``https://etcd1:2379``. The first that answers is used, and the next one when
it fails. The members' clocks must be kept together by NTP: leases are counted
by the clock of the member that answers.
""",
    ),
    cfg.StrOpt(
        "username",
        help="""
Name of an etcd user, where etcd's authentication is enabled. It needs a role
with ``readwrite`` on the prefix ``key_prefix``. Related option: ``password``.
""",
    ),
    cfg.StrOpt("password", secret=True, help="Password of ``username``."),
    cfg.StrOpt(
        "tls_cafile",
        help="""
File of the certificate authorities to trust with ``https`` endpoints; those of
the ``certifi`` package if unset.
""",
    ),
    cfg.StrOpt(
        "tls_certfile",
        help="""
File of this client's certificate, where etcd asks for one
(``--client-cert-auth``). Related option: ``tls_keyfile``.
""",
    ),
    cfg.StrOpt("tls_keyfile", help="File of the key to ``tls_certfile``."),
    cfg.StrOpt(
        "key_prefix",
        default="nodb",
        help="""
Prefix of every key that this driver writes: up to 60 letters, digits, ``-``, ``_``,
``.`` and ``/``. All services of one cloud must have the same value, and clouds
that share an etcd different ones.
""",
    ),
    cfg.StrOpt(
        "cloud_name",
        default="",
        help="""
Name of this cloud, kept below ``key_prefix`` by the first service that starts
there: a service whose ``cloud_name`` differs is refused. Set it where several
clouds share an etcd, so that a mistake in ``key_prefix`` does not mix their
hosts.
""",
    ),
    cfg.FloatOpt(
        "timeout_seconds",
        default=5.0,
        min=0.1,
        help="""
Longest wait for one answer of etcd. Raise it on slow networks and slow disks;
while etcd is down, each call takes as long as this.
""",
    ),
    cfg.BoolOpt(
        "compact",
        default=False,
        help="""
Compact etcd's history of more than about an hour ago, behind the collection of
tombstones. Compaction concerns the **whole** etcd, so set this only where no
other service needs its history, and etcd does not compact by itself; better
start etcd with ``--auto-compaction-retention=10m``. Without either, etcd grows
by gigabytes an hour until it refuses all writes.
""",
    ),
]

#: Of an option of this group; see :func:`.driver_options.refusal`.
refusal = functools.partial(driver_options.refusal, GROUP)


@attrs.frozen
class Endpoint:
    """A member's client URL."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        parts = urllib.parse.urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or 2379)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


@attrs.frozen
class EtcdOptions:
    """Options of one client; see :data:`OPTS`."""

    endpoints: tuple[str, ...] = attrs.field(default=(DEFAULT_ENDPOINT,), converter=tuple)
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    tls_cafile: str | None = None
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    key_prefix: str = "nodb"
    cloud_name: str = ""
    timeout_seconds: float = 5.0
    compact: bool = False

    def check(self) -> None:
        """Refuse what cannot work.

        :raises ConfigurationError: an endpoint that is no URL, a bad prefix,
            half a pair of credentials
        """
        if not self.endpoints:
            raise refusal("endpoints", "", f"name at least one, such as {DEFAULT_ENDPOINT}.")
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)
        driver_options.check_key_prefix(GROUP, self.key_prefix, may_nest=True)
        if (self.username is None) != (self.password is None):
            raise refusal("username", self.username, "set both username and password, or neither.")
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            raise refusal(
                "tls_certfile", self.tls_certfile, "set both tls_certfile and tls_keyfile."
            )

    def warn_of_plain_password(self) -> None:
        """Say so where the password would go over a network as it is."""
        if self.password is None:
            return
        found = map(Endpoint.parse, self.endpoints)
        transport_security.warn_of_plain_passwords(
            f"[{GROUP}] endpoints",
            [each.host for each in found if each.scheme != "https"],
            "begin the endpoints with https, for TLS",
        )


def _check_endpoint(endpoint: str) -> None:
    remedy = f"use URLs with scheme, host and port alone, such as {DEFAULT_ENDPOINT}"
    try:
        url = urllib.parse.urlsplit(endpoint)
        port = url.port
    except ValueError as error:
        raise refusal("endpoints", endpoint, f"{remedy}: {error}.") from error
    if "@" in url.netloc:
        # Not repeated here: it may be a password.
        raise refusal("endpoints", "...@...", "give username and password by their own options.")
    if url.scheme not in ("http", "https") or not url.hostname or port is None:
        raise refusal("endpoints", endpoint, f"{remedy}.")
    if url.path.strip("/") or url.query or url.fragment:
        raise refusal("endpoints", endpoint, f"{remedy}.")
