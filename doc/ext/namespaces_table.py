# SPDX-License-Identifier: Apache-2.0
"""The directive ``nodb-namespaces``: a table of the namespaces as they are declared."""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes, statemachine
from docutils.parsers.rst import Directive

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

HEADER = """
.. list-table::
   :header-rows: 1
   :widths: 20 12 43 25

   * - namespace
     - owner
     - columns
     - indexes
"""


def _literals(names: list[str]) -> str:
    return ", ".join(f"``{name}``" for name in names) or "\\-"


class NamespacesTable(Directive):
    """Render the table as reStructuredText and parse that."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """Return the table's nodes."""
        lines = HEADER.splitlines()
        for namespace in known_namespaces.BUILT_IN:
            lines += [
                f"   * - ``{namespace.name}``",
                f"     - {namespace.owner}",
                f"     - {_literals([column.name for column in namespace.columns])}",
                f"     - {_literals([index.name for index in namespace.indexes])}",
            ]
        container = nodes.Element()
        content = statemachine.StringList(lines, source=known_namespaces.__file__)
        self.state.nested_parse(content, self.content_offset, container)
        return container.children


def setup(app: Any) -> dict[str, bool]:
    """Register the directive with Sphinx."""
    app.add_directive("nodb-namespaces", NamespacesTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
