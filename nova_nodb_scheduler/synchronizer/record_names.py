# SPDX-License-Identifier: Apache-2.0
"""Names of records in back ends whose keys are bytes: namespace, separator, key."""

from __future__ import annotations

import re

from nova_nodb_scheduler.model import records

#: Stands in no namespace and no key: both hold no control characters.
SEPARATOR = b"\x1f"
_TEXT_SEPARATOR = SEPARATOR.decode()

_CONTROL = re.compile(rb"[\x00-\x1f]")


def encode(key: records.RecordKey) -> bytes:
    """Return the name of a record.

    :raises ValueError: it holds control characters
    """
    namespace, name = key.namespace.encode(), key.key.encode()
    if _CONTROL.search(namespace) or _CONTROL.search(name):
        raise ValueError(f"the name {key!r} holds control characters")
    return namespace + SEPARATOR + name


def decode(name: bytes) -> records.RecordKey:
    """Return the key that :func:`encode` was given; of other names, one with an empty part."""
    namespace, _, key = name.decode(errors="backslashreplace").partition(_TEXT_SEPARATOR)
    return records.RecordKey(namespace, key)
