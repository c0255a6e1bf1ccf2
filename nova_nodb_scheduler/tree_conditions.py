# SPDX-License-Identifier: Apache-2.0
"""The words in which a write of allocations is made conditional; imports nothing of Placement.

A request names provider trees with a mark each, of their generations, for which its
allocations were chosen::

    X-Nodb-Placement-If-Trees: 3e1f...=12,77ab...=4.9d0c51e2a7f3b684
    X-Nodb-Placement-If-Contents: 3e1f...=5b1f08c6e2d97a43,77ab...=c0de5e1f9ab27764

Generations move with each allocation, too. A tree of other generations is as the request says
where the second header has a digest of all else that it consists of, and that is the same.

Every answer of a process that knows conditions has one of::

    X-Nodb-Placement-Trees: compares                 (it compared none for this answer)
    X-Nodb-Placement-Trees: same                     (written; all trees were as the request says)
    X-Nodb-Placement-Trees: differ 3e1f... 77ab...   (409, nothing written; these are not)

An older guard, or Placement by itself, does not read the one and does not say the other. So
``same`` alone says that a condition was judged: that nothing was refused does not. One that reads
the first header alone judges by generations alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

REQUEST = "X-Nodb-Placement-If-Trees"
CONTENTS = "X-Nodb-Placement-If-Contents"
ANSWER = "X-Nodb-Placement-Trees"

#: Trees that one request may name: WSGI servers bound the length of headers, uWSGI that of all
#: together, to 4,096 bytes.
MOST_TREES = 32
#: Trees up to which a request has their contents, too; beyond, generations alone.
MOST_CONTENTS = 16

_COMPARES, _SAME, _DIFFER = "compares", "same", "differ"
_NAMED = re.compile(r"([0-9A-Za-z-]{1,36})=([0-9]{1,20}(?:\.[0-9a-f]{16})?)")
_CONTENT = re.compile(r"([0-9A-Za-z-]{1,36})=([0-9a-f]{16})")
_NUMBERS = ("total", "reserved", "min_unit", "max_unit", "step_size")


@attrs.frozen
class TreeMember:
    """One provider of a tree that is not its root."""

    uuid: str
    parent: str | None
    generation: int


@attrs.frozen
class ProviderContents:
    """What one provider of a tree is, but for who stands on it and its generation.

    :param inventories: by resource class, as Placement's API gives them
    """

    parent: str | None
    inventories: Mapping[str, Mapping[str, Any]]
    traits: Iterable[str]
    aggregates: Iterable[str]


@attrs.frozen
class TreeMark:
    """One state of a provider tree.

    :param generations: see :func:`mark`; another one with each allocation
    :param contents: see :func:`contents`; empty where they are not known
    """

    generations: str
    contents: str = ""


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


def contents(providers: Mapping[str, ProviderContents]) -> str:
    """Return a digest of what a tree consists of, its root included; 16 hexadecimal digits.

    :param providers: by uuid, all of the tree
    """
    listed = {
        uuid: (
            each.parent or "",
            {
                name: [*(inventory[n] for n in _NUMBERS), float(inventory["allocation_ratio"])]
                for name, inventory in each.inventories.items()
            },
            sorted(each.traits),
            sorted(each.aggregates),
        )
        for uuid, each in providers.items()
    }
    text = json.dumps(listed, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def requested(trees: Mapping[str, TreeMark]) -> dict[str, str]:
    """Return the request's headers for marks by root; none for none."""
    if not trees:
        return {}
    headers = {REQUEST: _named((root, each.generations) for root, each in trees.items())}
    if len(trees) <= MOST_CONTENTS and all(each.contents for each in trees.values()):
        headers[CONTENTS] = _named((root, each.contents) for root, each in trees.items())
    return headers


def _named(each: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{root}={text}" for root, text in each)


def read_request(trees: str | None, contents: str | None = None) -> Mapping[str, TreeMark]:
    """Return the marks by root that a request names; none where it cannot be understood.

    Nothing is judged then, and the answer says so. Contents that cannot be understood
    are none: generations alone are judged.

    :param trees: the value of :data:`REQUEST`
    :param contents: the value of :data:`CONTENTS`
    """
    known = _read(_CONTENT, contents)
    return {
        root: TreeMark(generations, known.get(root, ""))
        for root, generations in _read(_NAMED, trees).items()
    }


def _read(pattern: re.Pattern[str], header: str | None) -> dict[str, str]:
    if not header:
        return {}
    found = [pattern.fullmatch(each.strip()) for each in header.split(",")]
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
