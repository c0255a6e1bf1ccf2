# SPDX-License-Identifier: Apache-2.0
"""Tells by fingerprints whether code of Nova's or Placement's is that of a release that is known.

A fingerprint is of the code's tokens, and of which statement stands in which block: whatever
runs otherwise has another one. Comments, documentation, blanks and broken lines are not in it,
and it is the same for all Pythons. ``python -m tools.code_fingerprints`` makes them of releases.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_LAYOUT = frozenset([tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER])
#: Of which Python makes a token where a statement or a block ends, or begins. No token's text is
#: one of these.
_STRUCTURE = {tokenize.NEWLINE: "\n", tokenize.INDENT: "\t", tokenize.DEDENT: "\b"}
#: Texts with expressions in them are one token up to Python 3.11, and several since.
_BEGINS = frozenset(
    getattr(tokenize, name)
    for name in ("FSTRING_START", "TSTRING_START")
    if hasattr(tokenize, name)
)
_ENDS = frozenset(
    getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name)
)
_TRIES = 5

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def of_code(code: Any) -> str:
    """Return the fingerprint of a function, behind its decorators, of a class or a module.

    Empty where there is no source to be read.
    """
    try:
        return of_source(_tried(lambda: inspect.getsource(inspect.unwrap(code))))
    except (OSError, SyntaxError, SystemError, TypeError, tokenize.TokenError):
        return ""


def of_definitions(source: str, names: Collection[str]) -> dict[str, str | None]:
    """Return the fingerprint of what a module's source defines by each name, all of it together.

    As :func:`of_code` gives it of the function or the class, where it is defined once. None
    where there is no such definition.

    :param names: of functions or classes; dotted where they are of a class
    """
    lines = _lines(f"{source}\n")
    tree = _tried(lambda: ast.parse(source))
    made: dict[str, str | None] = {}
    for name in names:
        parts = ["".join(lines[first:last]) for first, last in _places(tree, name)]
        made[name] = of_source("".join(map(textwrap.dedent, parts))) if parts else None
    return made


def of_source(source: str) -> str:
    """Return the fingerprint of a source text, its decorators included."""
    kept: list[str] = []
    statement: list[tokenize.TokenInfo] = []
    for token in _whole_texts(textwrap.dedent(source)):
        if token.type not in _STRUCTURE:
            statement.append(token)
        elif token.type != tokenize.NEWLINE:
            kept.append(_STRUCTURE[token.type])
        else:
            if not all(map(_documents, statement)):
                kept += [*(each.string for each in statement), _STRUCTURE[token.type]]
            statement = []
    return hashlib.sha256("\0".join(kept).encode()).hexdigest()[:16]


def _documents(token: tokenize.TokenInfo) -> bool:
    """Say whether a token is a text that does nothing where a statement is made of such."""
    prefix = token.string.partition('"')[0].partition("'")[0]
    return token.type == tokenize.STRING and not {*prefix.lower()} & {*"ft"}


def _whole_texts(source: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a source that are not layout, each text as one of them."""
    lines = _lines(source)
    begun: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _BEGINS:
            begun.append(token)
        elif token.type in _ENDS:
            first = begun.pop()
            if not begun:
                text = _between(lines, first.start, token.end)
                yield tokenize.TokenInfo(tokenize.STRING, text, first.start, token.end, first.line)
        elif not begun and token.type not in _LAYOUT:
            yield token


def _lines(source: str) -> list[str]:
    # As Python counts them; str.splitlines() ends some at a form feed, too.
    return io.StringIO(source).readlines()


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    within = lines[start[0] - 1 : end[0]]
    # From its end first, for both may be of one line.
    within[-1] = within[-1][: end[1]]
    within[0] = within[0][start[1] :]
    return "".join(within)


def _places(tree: ast.Module, name: str) -> list[tuple[int, int]]:
    """Return the lines of definitions, decorators included: numbers from 0 before the first."""
    body = tree.body
    *owners, last = name.split(".")
    for owner in owners:
        classes = [each for each in body if isinstance(each, ast.ClassDef) and each.name == owner]
        body = [each for owned in classes for each in owned.body]
    return [
        (
            min([each.lineno, *(one.lineno for one in each.decorator_list)]) - 1,
            each.end_lineno or each.lineno,
        )
        for each in body
        if isinstance(each, Definition) and each.name == last
    ]


def _tried(parse: Callable[[], T]) -> T:
    """Return what a function that has Python parse something does.

    :raises SystemError: Python's own, where another thread makes a syntax tree at the same moment
        ("AST constructor recursion depth mismatch"), each of a few times; it says nothing about
        the code
    """
    for _ in range(_TRIES - 1):
        try:
            return parse()
        except SystemError:
            continue
    return parse()
