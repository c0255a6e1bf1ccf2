# SPDX-License-Identifier: Apache-2.0
"""Names of records in back ends whose keys are bytes: namespace, separator, key.

What may stand in them: :mod:`nova_nodb_scheduler.model.records`.
"""

from __future__ import annotations

from nova_nodb_scheduler.model import records

#: Stands in no namespace and no key: both hold no control characters.
SEPARATOR = b"\x1f"
_TEXT_SEPARATOR = SEPARATOR.decode()


def encode(key: records.RecordKey) -> bytes:
    """Return the name of a record.

    :raises ValueError: no record may have it; :mod:`.update_validation` lets none such through
    """
    fault = key.fault
    if fault is not None:
        raise ValueError(f"no record may be called {key}: {fault}")
    return key.namespace.encode() + SEPARATOR + key.key.encode()


def decode(name: bytes) -> records.RecordKey:
    """Return the key that :func:`encode` was given; of other names, one with an empty part."""
    namespace, _, key = name.decode(errors="backslashreplace").partition(_TEXT_SEPARATOR)
    return records.RecordKey(namespace, key)
