# SPDX-License-Identifier: Apache-2.0
"""A deployment whose parts can be taken away one by one: files, and the records of processes."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Mapping

import fixtures
import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.records import publisher
from tests.functional.cmd import troubles

CELL0 = "00000000-0000-0000-0000-000000000000"
CELL1 = "11111111-1111-1111-1111-111111111111"
FLAVOR = "small"

Sections = dict[str, dict[str, str]]


class Deployment(fixtures.Fixture):  # type: ignore[misc]  # untyped library
    """Nova's databases with two cells and a flavor, and a store with a scheduler's beat.

    :param transport_url: of the message bus
    """

    def __init__(self, transport_url: str) -> None:
        self._transport_url = transport_url

    def _setUp(self) -> None:
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.api = f"sqlite:///{self.directory / 'api.sqlite'}"
        self.store = f"sqlite:///{self.directory / 'nodb.sqlite'}"
        self.placement = f"sqlite:///{self.directory / 'placement.sqlite'}"
        self._make_databases(self.api, {CELL0: self._cell("cell0"), CELL1: self._cell("cell1")})
        self._make_placement()
        self._make_store()

    def _cell(self, name: str) -> str:
        return f"sqlite:///{self.directory / name}.sqlite"

    def api_with_cell(self, connection: str) -> str:
        """Make another API database, whose one cell has its database elsewhere."""
        url = f"sqlite:///{self.directory / str(abs(hash(connection)))}.sqlite"
        self._make_databases(url, {CELL0: self._cell("cell0"), CELL1: connection})
        return url

    def write(self, name: str, changes: Mapping[str, Mapping[str, str]] | None = None) -> str:
        """Write a nova.conf, of which options are changed by group, and return its path."""
        sections: Sections = {
            "DEFAULT": {
                "transport_url": self._transport_url,
                "state_path": str(self.directory),
                "scheduler_driver": "nodb_scheduler",
            },
            "api_database": {"connection": self.api},
            "database": {"connection": self._cell("cell1")},
            "placement": {
                "auth_type": "none",
                "endpoint_override": f"http://127.0.0.1:{troubles.closed_port()}/placement",
            },
            "scheduler": {"workers": "1"},
            "nodb_scheduler": {"synchronizer": "sqlalchemy", "reporter_bound_seconds": "3600"},
            "nodb_sqlalchemy": {"connection": self.store},
        }
        for group, options in (changes or {}).items():
            sections.setdefault(group, {}).update(options)
        path = self.directory / f"{name}.conf"
        lines = [
            line
            for group, options in sections.items()
            for line in (f"[{group}]", *(f"{each} = {value}" for each, value in options.items()))
        ]
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def _make_databases(self, api: str, cells: Mapping[str, str]) -> None:
        from nova.db.api import models as api_models
        from nova.db.main import models as main_models

        for url in cells.values():
            if url.startswith("sqlite"):
                _create(url, main_models.BASE.metadata)
        _create(api, api_models.BASE.metadata)
        with _connected(api) as connection:
            for uuid, url in cells.items():
                connection.execute(
                    sa.insert(api_models.CellMapping.__table__).values(
                        uuid=uuid, name=uuid[:1], transport_url="none:///", database_connection=url
                    )
                )
            connection.execute(
                sa.insert(api_models.Flavors.__table__).values(
                    name=FLAVOR,
                    flavorid=FLAVOR,
                    memory_mb=512,
                    vcpus=1,
                    root_gb=1,
                    ephemeral_gb=0,
                    swap=0,
                    rxtx_factor=1.0,
                    vcpu_weight=0,
                    disabled=False,
                    is_public=True,
                )
            )

    def _make_placement(self) -> None:
        from placement.db.sqlalchemy import models

        _create(self.placement, models.BASE.metadata)

    def _make_store(self) -> None:
        synchronizer = driver.SQLAlchemySynchronizer(driver.SQLOptions(self.store))
        synchronizer.open()
        try:
            declared = {each.name: each for each in known_namespaces.BUILT_IN}
            beat = {
                "host": "sched1",
                "pid": 11,
                "plugin": "1.0",
                "nova": "34.0.0",
                "beat_at": synchronizer.now_seconds(),
                "state": "following",
                "hosts": 5,
                "lag_seconds": 0.2,
                "fallbacks": {},
                "outcomes": {},
                "epoch": synchronizer.head().epoch,
            }
            key = records.RecordKey(known_namespaces.SCHEDULERS.name, "sched1:11:1")
            publisher.Publisher(synchronizer, declared, known_namespaces.NODB).publish(
                {key: lambda current: beat}
            )
        finally:
            synchronizer.close()


def _create(url: str, metadata: sa.MetaData) -> None:
    engine = sa.create_engine(url)
    metadata.create_all(engine)
    engine.dispose()


@contextlib.contextmanager
def _connected(url: str):  # type: ignore[no-untyped-def]
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()
