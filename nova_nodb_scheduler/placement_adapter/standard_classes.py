# SPDX-License-Identifier: Apache-2.0
"""Gives a request the ids of standard resource classes, which are the same for ever.

Placement neither deletes nor renames a standard class. Custom ones it does: a request that
names one reads the table, as each request of Placement's own does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from placement.objects import resource_class as rc_obj

_FIRST_CUSTOM = rc_obj.ResourceClass.MIN_CUSTOM_RESOURCE_CLASS_ID

#: Of this process, by name; replaced as a whole.
_known: dict[str, int] = {}


def ids(context: Any, names: Iterable[str]) -> dict[str, int]:
    """Return the ids of resource classes by name. For within a transaction.

    :raises ResourceClassNotFound: of Placement, for the first that there is none of
    """
    global _known
    cache = context.rc_cache
    if not cache._id_cache:
        cache._id_cache.update(_known)
    found = {name: cache.id_from_string(name) for name in names}
    if len(cache._id_cache) > len(_known):
        # It was read from the table.
        _known = {name: each for name, each in cache._id_cache.items() if each < _FIRST_CUSTOM}
    return found
