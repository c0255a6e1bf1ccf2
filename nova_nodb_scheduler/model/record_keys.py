# SPDX-License-Identifier: Apache-2.0
"""Which names records may have: one rule for every back end.

A name comes from Nova's tables, and what stands there a compute node may have
chosen. PostgreSQL takes no NUL, etcd's and Redis's layouts need a separator,
memcached's protocol has lines, UTF-8 carries no lone surrogate and a log is
read line by line. What one engine cannot hold is refused with all of them: a
store can then be moved, and no writer meets a name that stops its batch.
"""

from __future__ import annotations

import re

#: Longest parts, in characters; in UTF-8 each has up to four bytes.
NAMESPACE_CHARACTERS = 64
KEY_CHARACTERS = 255

#: Control characters (Unicode's category Cc) and surrogates (Cs).
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def fault_of(namespace: str, key: str) -> str | None:
    """Say why no record may have a name; None if one may.

    Nothing is normalised: names of other code points are other names, blanks
    at their ends included.
    """
    return _fault("namespace", namespace, NAMESPACE_CHARACTERS) or _fault(
        "key", key, KEY_CHARACTERS
    )


def _fault(part: str, text: str, most: int) -> str | None:
    if not text:
        return f"its {part} is empty"
    if len(text) > most:
        return f"its {part} has {len(text)} characters, at most {most} are taken"
    if text.isprintable():  # nearly always; neither a control nor a surrogate is
        return None
    found = _FORBIDDEN.search(text)
    if found is None:
        return None
    kind = "a lone surrogate" if "\ud800" <= found[0] <= "\udfff" else "a control character"
    return f"its {part} holds {kind}, U+{ord(found[0]):04X}"


def shown(text: str, most: int = KEY_CHARACTERS) -> str:
    """Return a name for people: of one line, and no longer than names may be."""
    if len(text) > most:
        text = f"{text[:most]}... ({len(text)} characters)"
    return text if text.isprintable() else ascii(text)[1:-1]
