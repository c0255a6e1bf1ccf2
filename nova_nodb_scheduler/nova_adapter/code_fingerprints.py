# SPDX-License-Identifier: Apache-2.0
"""Tells by fingerprints whether code of Nova's is that of a release that is known.

A fingerprint is of the code's tokens; comments, documentation and layout are not in it, and
it is the same for all Pythons.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
from typing import Any

_LAYOUT = frozenset(
    [
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    ]
)
_TRIES = 5


def fingerprint(code: Any) -> str:
    """Return the fingerprint of a function, behind its decorators, of a class or a module.

    Empty where there is no source to be read.
    """
    for _ in range(_TRIES):
        try:
            return fingerprint_of_source(inspect.getsource(inspect.unwrap(code)))
        except SystemError:
            # Python's own, where another thread makes a syntax tree at the same moment
            # ("AST constructor recursion depth mismatch"); it says nothing about the code.
            continue
        except (OSError, TypeError):
            break
    return ""


def fingerprint_of_source(source: str) -> str:
    """Return the fingerprint of a source text, its decorators included."""
    kept: list[str] = []
    begins = True
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent(source)).readline)
    for token in tokens:
        if token.type in _LAYOUT:
            begins = begins or token.type in (tokenize.NEWLINE, tokenize.INDENT)
            continue
        if token.type == tokenize.STRING and begins:
            # Documentation: a statement that is a text.
            continue
        begins = False
        kept.append(token.string)
    return hashlib.sha256(" ".join(kept).encode()).hexdigest()[:16]
