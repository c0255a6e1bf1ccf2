# SPDX-License-Identifier: Apache-2.0
"""Tell cells apart in a process in which Nova's fixtures play all of them.

Nova's CellDatabases gives each cell mapping a database of its own and patches
how a context finds it: an untargeted context goes to the cell that was
targeted last, and contexts that came by RPC have lost their ``cell_uuid``.
"""

from __future__ import annotations

from typing import Any

from nova import context as nova_context
from nova.db.main import api as main_db

from nova_nodb_scheduler.nova_adapter.reporting import scopes


class SuiteScopes(scopes.Scopes):
    """Answers by the database that Nova would really use."""

    def of_context(self, context: Any) -> str:
        """Return the cell whose database a context's statements reach now."""
        manager = main_db.get_context_manager(context)
        # The patched function is a method of Nova's fixture.
        fixture = main_db.get_context_manager.__self__
        return next(cell for cell, other in fixture._ctxt_mgrs.items() if other is manager)

    def context_for(self, scope: str) -> Any:
        """Return a context of our own, for the threads of the plugin.

        Not get_admin_context(): while a service starts, Nova's fixture makes
        it return that service's context. Not target_cell(): it moves every
        untargeted context of the process to the cell, and waits for a lock
        that a thread may hold while it waits for the plugin.
        """
        context = nova_context.RequestContext(is_admin=True, overwrite=False)
        if scope != scopes.API:
            nova_context.set_target_cell(context, self.mapping(scope))
        return context
