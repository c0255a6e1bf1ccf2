# SPDX-License-Identifier: Apache-2.0
"""One provider read again and published, before somebody is refused by its record.

For processes that follow no feed and keep no mirror: a conductor that claims.
What nova-compute changed a moment ago (its inventories, what it let go) no
record shows until the mirror's keeper has looked.
"""

from __future__ import annotations

import logging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.placement import reading, session, tree_publishing
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer import publisher as publisher_module

LOG = logging.getLogger(__name__)


class Rereading:
    """Any thread; blocks for some requests to Placement, and for the back end.

    :param publisher: of owner ``placement``
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        publisher: publisher_module.Publisher,
        get: reading.Get = session.get,
    ) -> None:
        self._reader = reading.Reader(get)
        self._trees = tree_publishing.TreePublisher(synchronizer, publisher, self._reader)

    def read(self, root: str) -> bool:
        """Read a provider's tree; True if its record was not what Placement has."""
        try:
            return self._trees.whole([(root, self._reader.tree(root))]).changed > 0
        except errors.NodbError as error:
            # It is refused by what is known, as if nobody had looked.
            LOG.warning(
                "Provider %(root)s is not read again: %(error)s", {"root": root, "error": error}
            )
            return False
