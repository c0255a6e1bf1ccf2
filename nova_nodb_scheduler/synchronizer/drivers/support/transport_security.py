# SPDX-License-Identifier: Apache-2.0
"""What goes over the wire to a back end: TLS that is configured wrongly, passwords in the clear.

The first is told from a server that went away. Of the second is warned and no
more: the network between controllers may be protected by other means, which
nobody here can see.
"""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Collection

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: The connection ended in the handshake: whoever restarts does that, too.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def is_tls_refused(error: BaseException | None) -> bool:
    """Tell whether a handshake failed in a way that waiting does not mend."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _ENDED)


_lock = threading.Lock()
_warned: set[tuple[str, ...]] = set()


def warn_of_plain_passwords(option: str, hosts: Collection[str], remedy: str) -> None:
    """Say once per process that a password leaves this host unencrypted, if it does.

    :param option: what names the servers, as ``[group] name``
    :param hosts: servers that are spoken to with a password and without TLS
    :param remedy: what to write instead
    """
    away = tuple(sorted({host for host in hosts if not is_loopback(host)}))
    if not away:
        return
    with _lock:
        if (option, *away) in _warned:
            return
        _warned.add((option, *away))
    LOG.warning(
        "The password for %(hosts)s goes over the network unencrypted, and so does every host "
        "state: whoever reads it decides where servers land. In %(option)s %(remedy)s.",
        {"hosts": ", ".join(away), "option": option, "remedy": remedy},
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address never leaves this host; empty is a socket's."""
    if host in ("", "localhost") or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.endswith(".localhost")
