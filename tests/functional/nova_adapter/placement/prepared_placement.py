# SPDX-License-Identifier: Apache-2.0
"""What each test's Placement would do again, done once or for less: tables, schemas, providers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from typing import Any

import fixtures
from jsonschema import exceptions, validators
from placement import context
from placement.handlers import inventory as inventory_handler
from placement.objects import inventory, resource_class, resource_provider, trait
from placement.tests import fixtures as placement_fixtures


class PreparedPlacement(fixtures.Fixture):  # type: ignore[misc]
    """To be used before Placement's own fixture.

    Its database, with traits and resource classes, is the copy of one that was made
    before. A schema is held against the rules of schemas once, not with each request.
    """

    def _setUp(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("placement.tests.fixtures.Database", _CopiedDatabase))
        self.useFixture(fixtures.MonkeyPatch("placement.util.jsonschema.validate", _validate))


def make_provider(key: str, totals: Mapping[str, int], *traits: str) -> None:
    """Make a provider, then its inventories and traits, as requests do at thrice the cost."""
    own = context.RequestContext()
    made = resource_provider.ResourceProvider(own, uuid=key, name=key)
    made.create()
    made.set_inventory(
        [
            inventory.Inventory(
                resource_provider=made,
                resource_class=name,
                **inventory_handler.INVENTORY_DEFAULTS | {"total": total},
            )
            for name, total in totals.items()
        ]
    )
    if traits:
        made.set_traits(trait.get_all(own, filters={"name_in": list(traits)}))


class _CopiedDatabase(placement_fixtures.Database):  # type: ignore[misc]
    #: The process's own, once it was made.
    _made: sqlite3.Connection | None = None

    def generate_schema_create_all(self, engine: Any) -> None:
        with contextlib.closing(engine.raw_connection()) as pooled:
            connection = pooled.driver_connection
            if _CopiedDatabase._made is None:
                super().generate_schema_create_all(engine)
                _CopiedDatabase._made = sqlite3.connect(":memory:", check_same_thread=False)
                connection.backup(_CopiedDatabase._made)
                return
            _CopiedDatabase._made.backup(connection)
        self.addCleanup(self.cleanup)
        trait._TRAITS_SYNCED = resource_class._RESOURCE_CLASSES_SYNCED = True


#: By their ids, which are theirs as long as they are kept here.
_checked: dict[int, Any] = {}


def _validate(instance: Any, schema: Any, **options: Any) -> None:
    """Do as ``jsonschema.validate``, but for the schema that was checked before."""
    kind = validators.validator_for(schema)
    if id(schema) not in _checked:
        kind.check_schema(schema)
        _checked[id(schema)] = schema
    error = exceptions.best_match(kind(schema, **options).iter_errors(instance))
    if error is not None:
        raise error
