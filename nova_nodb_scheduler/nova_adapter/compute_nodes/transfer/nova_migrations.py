# SPDX-License-Identifier: Apache-2.0
"""Whether migrations of the installed Nova are still to be run on a cell's database."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import nova.db.main
from alembic import script
from alembic.runtime import migration
from nova.db.main import api as main_db

_SCRIPTS = pathlib.Path(nova.db.main.__file__).parent / "migrations"


def are_outstanding(context: Any) -> bool:
    """Tell whether ``nova-manage db sync`` would change the database that a context is for.

    False where nobody can tell: the database was not made by migrations, or by those of a later
    release. Whatever the database's driver raises passes through.
    """
    with main_db.get_engine(context=context).connect() as connection:
        found = set(migration.MigrationContext.configure(connection).get_current_heads())
    known, heads = _revisions()
    return bool(found) and found <= known and found != heads


@functools.cache
def _revisions() -> tuple[frozenset[str], frozenset[str]]:
    """Return the revisions that the installed Nova has, and the last ones."""
    scripts = script.ScriptDirectory(str(_SCRIPTS))
    known = frozenset(each.revision for each in scripts.walk_revisions())
    return known, frozenset(scripts.get_heads())
