# SPDX-License-Identifier: Apache-2.0
"""Servers that were asked for long ago, and whose request nobody keeps.

A server that waits for room stands in Nova's API database as a build request, and in the back
end as a record that says how far it is. Where the back end lost its data (emptied, or restored
from before) the first is left: it stays in BUILD for ever, and no scheduler knows of it. So
does one in Nova itself whose conductor ended as it began to build it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

#: A younger one may be with a conductor that has not kept it yet, or never will: it does not wait.
OLD_SECONDS = 600.0

_PENDING = known_namespaces.PENDING.name


def find(synchronizer: contract.Synchronizer, asked: Callable[[], Sequence[str]]) -> list[str]:
    """Return those of the servers that were asked for whose request nobody keeps, in order.

    Blocks for the back end, which is opened and closed, and for what tells of servers.

    :param asked: returns servers that have stood as build requests for :data:`OLD_SECONDS`
    :raises BackendUnavailable: nobody can tell
    """
    synchronizer.open_existing()
    try:
        # First: of one that ends meanwhile the build request is gone, too.
        kept = {
            server
            for page in synchronizer.snapshot([_PENDING]).pages
            for record in page
            for server in _servers(record)
        }
    except contract.SnapshotInterrupted as error:
        raise errors.BackendUnavailable(
            synchronizer.name, "its epoch changed while requests were read"
        ) from error
    finally:
        synchronizer.close()
    return [server for server in asked() if server not in kept]


def _servers(record: records.Record) -> tuple[str, ...]:
    """Return a request's servers; of one that cannot be read that which it is named by."""
    key = record.key.key
    if record.deleted:
        return ()
    try:
        return pending.of_state(key, codec.decode(record.payload).state).servers
    except (errors.UndecodableRecord, pending.MalformedPending):
        return (key,)
