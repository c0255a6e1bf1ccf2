# SPDX-License-Identifier: Apache-2.0
"""How a namespace is declared: its owner, schema, columns and indexes.

A namespace reaches the store through the entry point group
``nova_nodb_scheduler.namespace`` alone: each entry names a
:class:`Namespace`. The store knows none of them by name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

#: Dotted path into a decoded state, split: ``("row", "vcpus")``.
Path = tuple[str, ...]


class Kind(enum.Enum):
    """What a column holds per record."""

    INT = "int64"
    FLOAT = "float64"
    BOOL = "bool"
    #: Text, kept as codes into a dictionary that only grows.
    CATEGORY = "category"
    #: A set of texts, kept as one bit each.
    BITS = "bits"


@attrs.frozen(order=True)
class SchemaVersion:
    """Version of a namespace's states: a newer minor is read, a newer major is not."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> SchemaVersion:
        """Read ``"1.0"``.

        :raises ValueError: the text is not two numbers with a dot between
        """
        major, _, minor = text.partition(".")
        return cls(int(major), int(minor))


@attrs.frozen
class Column:
    """A field of the state that is kept as an array over all records.

    :param path: where the value stands in the state
    :param default: value where the path is absent or None
    :param steady: it seldom changes, and readers keep what they made of all its
        values until it does; of numbers and texts, not of sets
    """

    name: str
    kind: Kind
    path: Path
    default: Any = 0
    steady: bool = False


@attrs.frozen
class Index:
    """Records by the values at some paths, as text: exact match only.

    :param few_values: there are few values with many records each. No map is
        kept: a look-up passes over the CATEGORY columns of the same paths,
        and a record that lacks a value counts by its column's default
    """

    name: str
    paths: tuple[Path, ...]
    few_values: bool = False


#: (key, state) -> what readers want of each record of a namespace.
Digest = Callable[[str, Mapping[str, Any]], Any]


class DigestForm(Protocol):
    """Digests as bytes that another process of the same release can take for its own.

    None, the digest of a record with nothing to tell, is never given to it.
    """

    def has(self, digest: Any) -> bool:
        """Return whether a digest has such a form; an error has none."""

    def dump(self, digests: Sequence[Any]) -> bytes:
        """Return digests as bytes; each has a form.

        :raises ValueError, TypeError: one of them has none after all
        """

    def load(self, dumped: bytes, count: int) -> list[Any]:
        """Return so many digests.

        :raises ValueError, TypeError, ArithmeticError, LookupError: these are no such bytes
        """


@attrs.frozen
class Namespace:
    """Declaration of one namespace.

    :param owner: who may write it; writes by others are refused
    :param schema: version this release writes
    :param digest: made of each state as it enters a store and kept beside the
        record, so that its readers need not decode it. It must not fail: what
        it cannot understand it returns as an error
    :param digest_row: type of digests that are bytes. Number columns named like one of its
        fields are read from there, and no array is kept for them: a digest is bytes only where
        these fields hold what the columns would
    :param digest_form: how digests are kept outside of a process; without it records that
        have one are decoded again
    :param uuid_keys: keys begin with uuids, and what follows is one of few texts, as in
        ``<uuid>@<cell>``. There are so many that a store keeps 17 bytes for each and makes
        their texts when it is asked for them; another key is kept as it is. Not for keys that
        are read all at once, or stand in an index that no column holds
    :param followed: False where nobody decides by its records: feeds pass them by, and no
        store has a table for them
    """

    name: str
    owner: str
    schema: SchemaVersion
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] = ()
    digest: Digest | None = None
    digest_row: np.dtype[Any] | None = None
    digest_form: DigestForm | None = None
    uuid_keys: bool = False
    followed: bool = True


def value_at(state: Mapping[str, Any], path: Path) -> Any:
    """Return what stands at a path of a state, or None where it is absent."""
    value: Any = state
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
