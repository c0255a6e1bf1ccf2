# SPDX-License-Identifier: Apache-2.0
"""The role ``step``: a module and a function, linked to the function's source.

``:step:`scheduling.frame.host_frame HostFrame.take``` shows both below the package's name, and
leads to a page of the module's source that the build makes (HTML only).
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import posixpath
from collections.abc import Iterator
from typing import Any

from docutils import nodes

PACKAGE = "nova_nodb_scheduler."
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _source(module: str) -> str:
    found = importlib.util.find_spec(PACKAGE + module)
    if found is None or found.origin is None:
        raise ValueError(f"there is no module {PACKAGE}{module}")
    return pathlib.Path(found.origin).read_text()


def _line(module: str, name: str) -> int:
    """Return the line in which a function begins.

    :raises ValueError: there is none of that name
    """
    inside: Any = ast.parse(_source(module))
    for part in name.replace(".<locals>", "").split("."):
        named = (each for each in ast.walk(inside) if isinstance(each, _NAMED))
        inside = next((each for each in named if each.name == part), None)
        if inside is None:
            raise ValueError(f"{PACKAGE}{module} has no {name}")
    return int(inside.lineno)


def _page(module: str) -> str:
    return f"_modules/{module.replace('.', '/')}"


def step(
    _name: str, raw: str, text: str, line: int, inliner: Any, _options: Any = None, _more: Any = ()
) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """Make the link of one step."""
    module, _, function = text.partition(" ")
    environment = inliner.document.settings.env
    try:
        at = _line(module, function)
    except ValueError as error:
        message = inliner.reporter.error(str(error), line=line)
        return [inliner.problematic(raw, raw, message)], [message]
    shown = [nodes.literal(text=module), nodes.Text(" "), nodes.literal(text=function)]
    if environment.app.builder.format != "html":
        return shown, []
    _modules(environment).add(module)
    here = posixpath.dirname(environment.docname)
    target = posixpath.relpath(f"{_page(module)}.html", here or ".")
    link = nodes.reference("", "", *shown, refuri=f"{target}#line-{at}", internal=True)
    return [link], []


def _modules(environment: Any) -> set[str]:
    """Return the modules of the steps read so far."""
    if not hasattr(environment, "step_modules"):
        environment.step_modules = set()
    found: set[str] = environment.step_modules
    return found


def _merge(_app: Any, environment: Any, _documents: Any, other: Any) -> None:
    """Take over what another process read."""
    _modules(environment).update(_modules(other))


def _pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the pages of the modules that steps are in."""
    for module in sorted(_modules(app.env)):
        body = app.builder.highlighter.highlight_block(
            _source(module), "python", linenos=False, lineanchors="line"
        )
        title = PACKAGE + module
        yield _page(module), {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def setup(app: Any) -> dict[str, bool]:
    """Register the role with Sphinx."""
    app.add_role("step", step)
    app.connect("env-merge-info", _merge)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
