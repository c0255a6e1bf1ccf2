# SPDX-License-Identifier: Apache-2.0
"""What is read behind the locks grants what Placement's own check grants, and nothing else."""

from __future__ import annotations

import itertools
import logging
import random
from typing import Any

import sqlalchemy as sa
from placement import context, db_api, exception
from placement.objects import allocation, resource_provider

from nova_nodb_scheduler.placement_adapter import locked_providers, standard_classes
from nova_nodb_scheduler.testing import servers
from tests.functional.placement_adapter import test_guarded_write

_CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")
#: Random requests of one test.
_REQUESTS = 300


class _Words(logging.Handler):
    """Whether Placement's check has had to say something."""

    said = False

    def emit(self, _record: logging.LogRecord) -> None:
        self.said = True


class SameRoomTest(test_guarded_write.GuardedCase):
    def setUp(self) -> None:
        super().setUp()
        seed = random.randrange(2**32)
        self.addDetail("seed", test_guarded_write.testtools.content.text_content(str(seed)))
        self.rng = random.Random(seed)
        self.words = _Words()
        logger = logging.getLogger(allocation.__name__)
        logger.addHandler(self.words)
        self.addCleanup(logger.removeHandler, self.words)

    def provider_with_random_inventories(self) -> str:
        name = self.placement.provider()
        rng = self.rng
        chosen = rng.sample(_CLASSES, rng.randint(0, len(_CLASSES)))
        inventories = {
            each: {
                "total": rng.randint(1, 12),
                "reserved": rng.choice([0, 0, 1]),
                "allocation_ratio": rng.choice([0.1, 0.7, 1.0, 1.1, 1.3333, 1.9, 16.0]),
                "min_unit": rng.choice([1, 1, 2]),
                "max_unit": rng.choice([8, 100]),
                "step_size": rng.choice([1, 1, 2]),
            }
            for each in chosen
        }
        generation = self.placement.generation(name)
        body = {"resource_provider_generation": generation, "inventories": inventories}
        answer = self.placement.call("PUT", f"/resource_providers/{name}/inventories", body)
        self.assertEqual(200, answer.status, answer)
        with self.fixture.engine.begin() as connection:
            for number, each in enumerate(_CLASSES):
                if each in chosen and rng.randrange(2):
                    connection.execute(
                        allocation._ALLOC_TBL.insert().values(
                            resource_provider_id=sa.select(allocation._RP_TBL.c.id)
                            .where(allocation._RP_TBL.c.uuid == name)
                            .scalar_subquery(),
                            resource_class_id=number,
                            consumer_id=name,
                            used=rng.randint(1, 12),
                        )
                    )
        return name

    def judged(self, ctx: Any, asked: list[Any]) -> tuple[bool, bool]:
        """Whether there is room as this says, and as Placement does without a word."""
        with db_api.placement_context_manager.reader.using(ctx):
            classes = standard_classes.ids(ctx, {each.resource_class for each in asked})
            locked = locked_providers.read(
                ctx, {each.resource_provider.id for each in asked}, classes.values(), ()
            )
            found = locked.have_room(
                (each.resource_provider.id, classes[each.resource_class], each.used)
                for each in asked
            )
            self.words.said = False
            try:
                allocation._check_capacity_exceeded(ctx, asked, {})
            except exception.InvalidInventory:
                return found, False
        return found, not self.words.said

    def test_it_grants_what_placement_grants(self) -> None:
        ctx = context.RequestContext(config=self.fixture.conf)
        providers = [
            resource_provider.ResourceProvider.get_by_uuid(
                ctx, self.provider_with_random_inventories()
            )
            for _ in range(20)
        ]
        places = list(itertools.product(providers, _CLASSES))
        outcomes = set()
        for _ in range(_REQUESTS):
            asked = [
                allocation.Allocation(
                    resource_provider=provider,
                    consumer=None,
                    resource_class=each,
                    used=self.rng.choice([0, 1, 1, 2, 2, 3, 4, 6, 9]),
                )
                for provider, each in self.rng.choices(places, k=self.rng.choice([1, 1, 2, 3]))
            ]
            named = [
                (each.resource_provider.uuid, each.resource_class, each.used) for each in asked
            ]
            mine, own = self.judged(ctx, asked)
            # For a removal it may ask Placement where it need not: nothing else.
            if any(each.used for each in asked) or mine:
                self.assertTrue(own or not mine, named)
            if all(each.used for each in asked):
                self.assertEqual(own, mine, named)
            outcomes.add(mine)
        self.assertEqual({True, False}, outcomes)


class PostgreSQLSameRoomTest(SameRoomTest):
    database = servers.PostgreSQL
