# SPDX-License-Identifier: Apache-2.0
"""Tells TLS that is configured wrongly from a server that went away."""

from __future__ import annotations

import ssl

#: The connection ended in the handshake: whoever restarts does that, too.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def is_refused(error: BaseException | None) -> bool:
    """Tell whether a handshake failed in a way that waiting does not mend."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _ENDED)
