# SPDX-License-Identifier: Apache-2.0
"""What is refused when a client opens: a server that could not keep the promises."""

from __future__ import annotations

import pymemcache
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import options
from nova_nodb_scheduler.synchronizer.drivers.support import transport_security

LOG = log.getLogger(__name__)

#: memcached's default item limit is 1 MiB, name and headers included.
ITEM_BYTES = 1024 * 1024


def check(settings: options.MemcachedOptions, connection: connection_module.Connection) -> None:
    """Refuse a server whose configuration rules this driver out.

    :raises ConfigurationError: with the remedy
    :raises BackendUnavailable: it does not answer
    """
    server = settings.servers[0]
    try:
        version = connection.version()
    except errors.BackendUnavailable as error:
        raise _explained(settings, connection, error) from error
    configured = connection.statistics("settings")
    if configured.get("cas_enabled") in (b"no", False):
        raise options.refusal("servers", server, "start memcached without -C: it needs cas.")
    if int(configured.get("item_size_max", ITEM_BYTES)) < ITEM_BYTES:
        raise options.refusal(
            "servers", server, "start memcached with -I 1m or more: its items are too small."
        )
    if configured.get("evictions") == b"on":
        LOG.warning(
            "memcached %(version)s at %(server)s evicts items when it is full, which "
            "begins a new epoch: start it with -M and ample -m",
            {"version": version, "server": server},
        )


def _explained(
    settings: options.MemcachedOptions,
    connection: connection_module.Connection,
    error: errors.BackendUnavailable,
) -> errors.NodbError:
    """Return what to raise of a server that gives no first answer."""
    cause = error.__cause__
    if transport_security.is_tls_refused(cause):
        return options.refusal(
            "tls_cafile",
            settings.tls_cafile or "(the system's)",
            f"TLS failed ({cause}): name the authority that signed the server's certificate; "
            "the certificate must name the host of 'servers', and the port must speak TLS.",
        )
    cut = isinstance(cause, pymemcache.MemcacheUnexpectedCloseError | ConnectionResetError)
    if cut and not settings.tls_enabled:
        hint = f"set [{options.GROUP}] tls_enabled if the port speaks TLS"
        return connection.unavailable(f"it ends connections ({cause}); {hint}")
    return error
