# SPDX-License-Identifier: Apache-2.0
"""What client and server of the RPC API agree on.

======= ===================================================================
version methods
======= ===================================================================
1.0     update_host_states, get_host_states, list_namespaces, get_status
1.1     explain, get_decisions
1.2     list_host_states
1.3     list_pending, get_pending, cancel_pending, promote_pending,
        drain_pending
======= ===================================================================
"""

from __future__ import annotations

from nova_nodb_scheduler import errors

NAMESPACE = "nodb"
VERSION = "1.3"

#: What a call asks for unless its method came later: servers that are not
#: upgraded yet answer it, too.
FIRST_VERSION = "1.0"

#: Modules whose exceptions a client's transport must be allowed to build
#: (``allowed_remote_exmods``); without it each is a RemoteError.
EXCEPTION_MODULES = (errors.__name__,)
