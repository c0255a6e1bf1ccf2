# SPDX-License-Identifier: Apache-2.0
"""What readers see: the store at one moment, which never changes again."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.store import namespace_view


@attrs.frozen(eq=False)
class Snapshot:
    """All namespaces at one moment.

    :param number: grows from one snapshot of a store to the next
    """

    number: int
    _views: Mapping[str, namespace_view.NamespaceView] = attrs.field(repr=False)

    def namespace(self, name: str) -> namespace_view.NamespaceView:
        """Return the view of a namespace.

        :raises UnknownNamespace: it is not declared
        """
        view = self._views.get(name)
        if view is None:
            raise errors.UnknownNamespace(name, ", ".join(sorted(self._views)))
        return view

    def namespaces(self) -> tuple[str, ...]:
        """Return the declared names, sorted."""
        return tuple(sorted(self._views))
