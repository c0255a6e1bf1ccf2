# SPDX-License-Identifier: Apache-2.0
"""A real Placement in process, filled anew for each cluster by rows, not by requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import requests
import sqlalchemy as sa
from placement import db_api
from placement.db.sqlalchemy import models
from placement.tests.functional.fixtures import placement as placement_fixture

from tests.differential import cases
from tests.differential.drawn import words

_TABLES = (
    models.Allocation,
    models.Consumer,
    models.Inventory,
    models.ResourceProviderAggregate,
    models.ResourceProviderTrait,
    models.PlacementAggregate,
    models.ResourceProvider,
)


class _PlacementFixture(placement_fixture.PlacementFixture):  # type: ignore[misc]
    def _configure_placement(self, conf_fixture: Any) -> None:
        # The database is in memory, and lost with its connection, which oslo.db would make
        # anew after an hour: long runs take longer.
        conf_fixture.config(connection_recycle_time=-1, group="placement_database")


class Placement:
    """Answers GET /allocation_candidates for the cluster it holds."""

    def __init__(self) -> None:
        self._fixture = _PlacementFixture()
        self._fixture.setUp()
        self._held: cases.Cluster | None = None
        with self._session() as session:
            session.execute(
                sa.insert(models.ResourceClass).values(id=10_000, name=words.CUSTOM_CLASS)
            )
            session.execute(sa.insert(models.Project).values(id=1, external_id="p1"))
            session.execute(sa.insert(models.User).values(id=1, external_id="u"))
            known = set(session.execute(sa.select(models.Trait.name)).scalars())
            custom = [{"name": name} for name in words.TRAITS if name not in known]
            session.execute(sa.insert(models.Trait), custom)
        with self._session() as session:
            self._classes = dict(
                session.execute(sa.select(models.ResourceClass.name, models.ResourceClass.id)).all()
            )
            self._traits = dict(
                session.execute(sa.select(models.Trait.name, models.Trait.id)).all()
            )

    def stop(self) -> None:
        """Give the database back."""
        self._fixture.cleanUp()

    @staticmethod
    def _session() -> Any:
        return db_api.placement_context_manager.writer.using(_Context())

    def get(self, path: str) -> Any:
        """Ask Placement something; return its response."""
        return requests.get(
            self._fixture.endpoint + path,
            headers={"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"},
            timeout=60,
        )

    def candidates(self, cluster: cases.Cluster, query: Any) -> list[Mapping[str, Any]] | None:
        """Answer a ResourceRequest of Nova as its report client would; None for a refusal."""
        self.fill(cluster)
        response = self.get(f"/allocation_candidates?{query.to_querystring()}")
        if response.status_code != 200:
            return None
        return list(response.json()["allocation_requests"])

    def fill(self, cluster: cases.Cluster) -> None:
        """Hold this cluster's providers and nothing else."""
        if self._held is cluster:
            return
        self._held = cluster
        ids = {each.uuid: at + 1 for at, each in enumerate(cluster.providers)}
        aggregates = sorted({name for each in cluster.providers for name in each.aggregates})
        aggregate_ids = {name: at + 1 for at, name in enumerate(aggregates)}
        rows: dict[Any, list[dict[str, Any]]] = {table: [] for table in _TABLES}
        rows[models.PlacementAggregate] = [
            {"id": number, "uuid": name} for name, number in aggregate_ids.items()
        ]
        for provider in cluster.providers:
            self._put(rows, provider, ids, aggregate_ids)
        with self._session() as session:
            for table in _TABLES:
                session.execute(sa.delete(table))
            for table in reversed(_TABLES):
                if rows[table]:
                    session.execute(sa.insert(table), rows[table])

    def _put(
        self,
        rows: Mapping[Any, list[dict[str, Any]]],
        provider: cases.Provider,
        ids: Mapping[str, int],
        aggregates: Mapping[str, int],
    ) -> None:
        own = ids[provider.uuid]
        parent = ids[provider.parent] if provider.parent else None
        rows[models.ResourceProvider].append(
            {
                "id": own,
                "uuid": provider.uuid,
                "name": provider.uuid,
                "generation": provider.generation,
                "root_provider_id": parent or own,
                "parent_provider_id": parent,
            }
        )
        for name, held in provider.inventories.items():
            rows[models.Inventory].append(
                {
                    "resource_provider_id": own,
                    "resource_class_id": self._classes[name],
                    "total": held.total,
                    "reserved": held.reserved,
                    "min_unit": held.min_unit,
                    "max_unit": held.max_unit,
                    "step_size": held.step_size,
                    "allocation_ratio": held.allocation_ratio,
                }
            )
        rows[models.ResourceProviderTrait].extend(
            {"resource_provider_id": own, "trait_id": self._traits[name]}
            for name in sorted(provider.traits)
        )
        rows[models.ResourceProviderAggregate].extend(
            {"resource_provider_id": own, "aggregate_id": aggregates[name]}
            for name in sorted(provider.aggregates)
        )
        for consumer, used in provider.allocations.items():
            rows[models.Consumer].append(
                {"uuid": consumer, "project_id": 1, "user_id": 1, "generation": 1}
            )
            rows[models.Allocation].extend(
                {
                    "resource_provider_id": own,
                    "consumer_id": consumer,
                    "resource_class_id": self._classes[name],
                    "used": amount,
                }
                for name, amount in used.items()
            )


class _Context:
    """What an enginefacade wants of a context."""

    session: Any = None


def by_root(
    cluster: cases.Cluster, found: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, list[Mapping[str, Any]]], Sequence[str]]:
    """Sort allocation requests by provider; return all providers of their trees too."""
    requests_by: dict[str, list[Mapping[str, Any]]] = {}
    for each in found:
        for uuid in each["allocations"]:
            requests_by.setdefault(uuid, []).append(each)
    root = {each.uuid: each.parent or each.uuid for each in cluster.providers}
    summaries = {root[uuid] for uuid in requests_by} | set(requests_by)
    return requests_by, sorted(summaries)
