# SPDX-License-Identifier: Apache-2.0
"""The words in which a write of allocations is made conditional; imports nothing of Placement.

A request names provider trees with a mark each, of their generations, for which its
allocations were chosen::

    X-Nodb-Placement-If-Trees: 3e1f...=12,77ab...=4.9d0c51e2a7f3b684

and every answer of a process that knows conditions has one of::

    X-Nodb-Placement-Trees: compares                 (it compared none for this answer)
    X-Nodb-Placement-Trees: same                     (written; all trees were as the request says)
    X-Nodb-Placement-Trees: differ 3e1f... 77ab...   (409, nothing written; these are not)

An older guard, or Placement by itself, does not read the one and does not say the other. So
``same`` alone says that a condition was judged: that nothing was refused does not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import attrs

REQUEST = "X-Nodb-Placement-If-Trees"
ANSWER = "X-Nodb-Placement-Trees"

#: Trees that one request may name: WSGI servers bound the length of headers, uWSGI that of all
#: together, to 4,096 bytes.
MOST_TREES = 32

_COMPARES, _SAME, _DIFFER = "compares", "same", "differ"
_NAMED = re.compile(r"([0-9A-Za-z-]{1,36})=([0-9]{1,20}(?:\.[0-9a-f]{16})?)")


@attrs.frozen
class TreeMember:
    """One provider of a tree that is not its root."""

    uuid: str
    parent: str | None
    generation: int


def mark(generation: int, others: Iterable[TreeMember]) -> str:
    """Return what tells one state of a tree from all others that generations tell.

    :param generation: of the root
    :param others: the members below it, in any order
    """
    listed = sorted((each.uuid, each.parent or "", each.generation) for each in others)
    if not listed:
        return str(generation)
    text = "\n".join(f"{uuid} {parent} {number}" for uuid, parent, number in listed)
    return f"{generation}.{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def requested(trees: Mapping[str, str]) -> str:
    """Return the request's header for marks by root."""
    return ",".join(f"{root}={each}" for root, each in trees.items())


def read_request(header: str | None) -> Mapping[str, str]:
    """Return the marks by root that a request names; none where it cannot be understood.

    Nothing is judged then, and the answer says so.
    """
    if not header:
        return {}
    found = [_NAMED.fullmatch(each.strip()) for each in header.split(",")]
    trees = {each.group(1): each.group(2) for each in found if each}
    return trees if len(trees) == len(found) <= MOST_TREES else {}


def answered(differing: frozenset[str] | None) -> str:
    """Return the answer's header.

    :param differing: roots of trees that are not as the request says; None: none was compared
    """
    if differing is None:
        return _COMPARES
    return " ".join([_DIFFER, *sorted(differing)]) if differing else _SAME


@attrs.frozen
class ConditionAnswer:
    """What an answer says of conditions.

    :param is_known: who answered knows them
    :param is_same: all trees were compared as the allocations were written, and as expected
    :param differing: roots of trees that were not; nothing is written then
    """

    is_known: bool = False
    is_same: bool = False
    differing: frozenset[str] = frozenset()


def read_answer(headers: Mapping[str, str]) -> ConditionAnswer:
    """Return what the headers of an answer say; nothing but what is understood."""
    match (headers.get(ANSWER) or "").split():
        case [word] if word == _COMPARES:
            return ConditionAnswer(is_known=True)
        case [word] if word == _SAME:
            return ConditionAnswer(is_known=True, is_same=True)
        case [word, *roots] if word == _DIFFER and roots:
            return ConditionAnswer(is_known=True, differing=frozenset(roots))
    return ConditionAnswer()
