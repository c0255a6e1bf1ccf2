# SPDX-License-Identifier: Apache-2.0
"""What Nova would ask Placement, as a query that is answered from memory.

The query string is read, not Nova's ResourceRequest: it is what Placement would
get, and it is the same in every release.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib import parse

import attrs

from nova_nodb_scheduler.model import requests


@attrs.frozen
class Outside:
    """A request that memory does not answer.

    :param reason: a few words, the same for all requests of a kind
    """

    reason: str


#: Parameters of the one group that is understood, without a suffix.
_UNDERSTOOD = frozenset(
    ["limit", "resources", "required", "member_of", "in_tree", "root_required", "group_policy"]
)


def parse_query(text: str) -> requests.CandidateQuery | Outside:
    """Read the query string of a GET /allocation_candidates.

    ``limit`` is left aside: from memory all candidates are weighed. So is
    ``group_policy``, which means nothing for a single group.
    """
    pairs = parse.parse_qsl(text)
    for name, value in pairs:
        if name not in _UNDERSTOOD:
            return Outside("same subtree" if name == "same_subtree" else "more than one group")
        if name in ("required", "root_required") and value.startswith("in:"):
            return Outside("any of several traits")
    values = dict(pairs)
    if "resources" not in values:
        return Outside("no resources")
    required, forbidden = _signed(value for name, value in pairs if name == "required")
    root_required, root_forbidden = _signed(
        value for name, value in pairs if name == "root_required"
    )
    memberships = [value for name, value in pairs if name == "member_of"]
    return requests.CandidateQuery(
        resources={
            name: int(amount)
            for name, _, amount in (item.partition(":") for item in values["resources"].split(","))
        },
        required_traits=required,
        forbidden_traits=forbidden,
        root_required=root_required,
        root_forbidden=root_forbidden,
        member_of=tuple(
            frozenset(value.removeprefix("in:").split(","))
            for value in memberships
            if not value.startswith("!")
        ),
        forbidden_aggregates=frozenset(
            aggregate
            for value in memberships
            if value.startswith("!")
            for aggregate in value.removeprefix("!").removeprefix("in:").split(",")
        ),
        in_tree=values.get("in_tree"),
    )


def _signed(values: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Split lists of traits into those that must be there and those that must not."""
    traits = [trait for value in values for trait in value.split(",")]
    return (
        frozenset(trait for trait in traits if not trait.startswith("!")),
        frozenset(trait[1:] for trait in traits if trait.startswith("!")),
    )
