# SPDX-License-Identifier: Apache-2.0
"""What is asked of a Galera node before it is relied upon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging

from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import failures, schema

LOG = logging.getLogger(__name__)

_SYNCED = "Synced"
_LOOK = "look at the node's log, or let [nodb_sqlalchemy] connection name another node"


def set_session(cursor: Any, wanted_sync_wait: int | None) -> bool:
    """Make a new session's reads see what other nodes have committed; False without Galera.

    A read on one node would otherwise not see a write that was accepted
    through another a moment before, as the driver's contract demands.

    :param wanted_sync_wait: the operator's own setting; reads wait anyway
    """
    cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
    found = cursor.fetchone()
    if found is None or str(found[1]).upper() not in ("ON", "1"):
        return False
    cursor.execute("SET SESSION wsrep_sync_wait = %s", ((wanted_sync_wait or 0) | 1,))
    return True


def check(engine: sa.Engine, ordering: str) -> None:
    """Warn of a node that is no good choice.

    One that is not ready at all refuses every statement, the first of a
    connection included: :mod:`.failures` says what that means.
    """
    if engine.dialect.name != "mysql":
        return
    with engine.connect() as connection:
        status = _status(connection)
    if not status:
        return
    name = failures.backend_name(engine.url)
    state = status.get("wsrep_local_state_comment", "")
    if state != _SYNCED:
        LOG.warning(
            "The Galera node %(backend)s is %(state)s, not Synced: it may fall behind: %(look)s",
            {"backend": name, "state": state, "look": _LOOK},
        )
    if ordering == schema.COUNTER and int(status.get("wsrep_cluster_size") or 0) > 1:
        LOG.warning(
            "%(backend)s is a node of a Galera cluster, and [nodb_sqlalchemy] ordering = counter: "
            "all services must write through one and the same node (a proxy with a single active "
            "server), or every commit conflicts; else set ordering = sequencer",
            {"backend": name},
        )


def _status(connection: sa.Connection) -> Mapping[str, str]:
    """Read what a node says of itself; empty where there is no Galera."""
    on = connection.exec_driver_sql("SHOW VARIABLES LIKE 'wsrep_on'").one_or_none()
    if on is None or str(on[1]).upper() not in ("ON", "1"):
        return {}
    rows = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'wsrep\\_%%'")
    return {str(row[0]): str(row[1]) for row in rows}
