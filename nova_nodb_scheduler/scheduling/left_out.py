# SPDX-License-Identifier: Apache-2.0
"""Whether a request might have gone to a host that the frame leaves out.

Of such a host some record cannot be understood. Its name and cell are known
all the same, and with them what the request itself rules out.
"""

from __future__ import annotations

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import candidates, host_frame


def is_possible(
    request: requests.Request,
    frame: host_frame.HostFrame,
    uuid: str,
    place: tuple[str, str] | None,
) -> bool:
    """Return False where the request names other hosts only, or rules this one out.

    :param uuid: of the compute node
    :param place: (cell, host); None where not even that is known
    """
    if request.queries:
        trees = candidates.Candidates(request.queries).trees()
        # Who is in the frame is another host; of a child nobody knows whose it is.
        if trees is not None and all(
            tree != uuid and frame.row_of_tree(tree) is not None for tree in trees
        ):
            return False
    if place is None:
        return True
    cell, host = place
    if cell not in request.cells or _is_among(host, request.ignore_hosts):
        return False
    destination = request.destination
    if destination is not None and destination.host not in (None, host):
        return False
    return not request.force_hosts or _is_among(host, request.force_hosts)


def _is_among(host: str, names: tuple[str, ...]) -> bool:
    return host.lower() in map(str.lower, names)
