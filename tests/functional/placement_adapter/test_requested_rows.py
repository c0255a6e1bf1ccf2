# SPDX-License-Identifier: Apache-2.0
"""What a request names comes as it stands in the tables, whatever its texts hold."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import fixtures
import testtools

from nova_nodb_scheduler.placement_adapter import requested_rows
from nova_nodb_scheduler.testing import servers
from tests.functional.placement_adapter import test_guarded_write

_ROWS = 40
#: Also what stands between words or for it, marks a text that is there, and begins a line.
_CHARACTERS = " =0é5'\"%\\|~1"


class _SQLiteFile(fixtures.Fixture):  # type: ignore[misc]
    """An SQLite file with Placement's tables: ``url``."""

    def __init__(self, prepare: Callable[[str], None]) -> None:
        self._prepare = prepare

    def _setUp(self) -> None:
        self.url = f"sqlite:///{self.useFixture(fixtures.TempDir()).path}/placement.sqlite"
        self._prepare(self.url)


class PackedTextsTest(test_guarded_write.GuardedCase):
    characters = _CHARACTERS + "\0"

    def setUp(self) -> None:
        super().setUp()
        seed = random.randrange(2**32)
        self.addDetail("seed", testtools.content.text_content(str(seed)))
        self.rng = random.Random(seed)

    def text(self) -> str:
        # Behind it something else: MySQL compares as if there were no spaces at the end.
        middle = "".join(self.rng.choices(self.characters, k=self.rng.randrange(12)))
        return self.rng.choice(("", " ", "=")) + middle + uuid.uuid4().hex[:8]

    def insert(self, table: Any, values: dict[str, Any]) -> int:
        with self.fixture.engine.begin() as connection:
            made: int = connection.execute(table.insert().values(**values)).inserted_primary_key[0]
        return made

    def test_texts_of_all_kinds_and_what_is_null_are_read_as_they_are(self) -> None:
        wanted = requested_rows.RequestedRows()
        for place in range(_ROWS):
            project, user, name = self.text(), self.text(), self.text()
            wanted.projects[project] = self.insert(
                requested_rows._PROJECTS, {"external_id": project}
            )
            wanted.users[user] = self.insert(requested_rows._USERS, {"external_id": user})
            type_name = f"TYPE_{place}"
            wanted.types[type_name] = self.insert(requested_rows._TYPES, {"name": type_name})
            provider, consumer = str(uuid.uuid4()), str(uuid.uuid4())
            provider_name = None if place % 5 == 0 else name
            generation = None if place % 7 == 0 else self.rng.randrange(2**31)
            number = self.insert(
                requested_rows._PROVIDERS,
                {"uuid": provider, "name": provider_name, "generation": generation},
            )
            wanted.providers[provider] = (number, provider, provider_name, generation)
            type_id = None if place % 3 == 0 else wanted.types[type_name]
            values = {
                "uuid": consumer,
                "generation": self.rng.randrange(2**31),
                "consumer_type_id": type_id,
                "project_id": wanted.projects[project],
                "user_id": wanted.users[user],
            }
            wanted.consumers[consumer] = {
                "id": self.insert(requested_rows._CONSUMERS, values),
                **values,
                "project_external_id": project,
                "user_external_id": user,
                "created_at": None,
                "updated_at": None,
            }
            wanted.held[consumer] = [
                self.insert(
                    requested_rows._ALLOCATIONS,
                    {
                        "resource_provider_id": number,
                        "resource_class_id": class_id,
                        "consumer_id": consumer,
                        "used": 1,
                    },
                )
                for class_id in range(place % 3)
            ]
        found = requested_rows.read(
            wanted.consumers,
            providers=wanted.providers,
            projects=wanted.projects,
            users=wanted.users,
            types=wanted.types,
        )
        wanted = requested_rows.RequestedRows(
            **{
                name: getattr(wanted, name)
                for name in ("providers", "projects", "users", "types", "consumers")
            },
            held={name: sorted(each) for name, each in wanted.held.items() if each},
        )
        found.held.update({name: sorted(each) for name, each in found.held.items()})
        self.assertEqual(wanted, found)


class PostgreSQLPackedTextsTest(PackedTextsTest):
    database = servers.PostgreSQL
    #: Which has no NUL in a text.
    characters = _CHARACTERS


class SQLitePackedTextsTest(PackedTextsTest):
    database = _SQLiteFile
