# SPDX-License-Identifier: Apache-2.0
"""The SQL synchronizer: the contract's methods, handed to the parts that do them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

import sqlalchemy as sa
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    database,
    engines,
    epochs,
    failures,
    housekeeping,
    migration,
    options,
    reading,
    schema,
    sequencing,
    statements,
    writing,
)
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base

#: An escaped payload may double; the rest of a statement is small.
_PACKET_OVERHEAD_BYTES = 1 << 16


class SQLAlchemySynchronizer(driver_base.Driver):
    """Keeps records in SQLite, MariaDB / MySQL or PostgreSQL.

    :param sql_options: see :class:`.options.SQLOptions`
    :raises ConfigurationError: the connection cannot be served
    """

    name = "sqlalchemy"
    GROUP, OPTS = options.GROUP, options.OPTS
    STEPS = statements.COUNTER_STEPS
    #: What an instance on MariaDB has as STEPS.
    WHOLE_STEPS = statements.COUNTER_OR_WHOLE_STEPS
    #: What an instance in sequencer mode has as STEPS.
    SEQUENCER_STEPS = statements.SEQUENCER_STEPS
    # One transaction; its statements are cut by bytes.
    WRITES_PER_BATCH = writing.MAX_BATCH_KEYS

    def __init__(self, sql_options: options.SQLOptions) -> None:
        self._options = sql_options
        self._database = database.Database(sql_options)
        super().__init__(self._database.name, sql_options.poll_intervals())
        ordering = sql_options.ordering
        self._epochs = epochs.Epochs(self._database, ordering, self._report_step)
        self._clock: housekeeping.Clock = housekeeping.Clock(self._database)
        self._housekeeper = housekeeping.Housekeeper(
            self._database, self._epochs, self._report_step
        )
        wiring = (self._database, self._epochs, self._report_step)
        if ordering == schema.SEQUENCER:
            self.STEPS = self.SEQUENCER_STEPS  # type: ignore[misc]
            sequencer = sequencing.Sequencer(*wiring)
            self._reader = reading.Reader(self._database, self._epochs, self._poll, sequencer)
            self._writer: writing.Writer = writing.SequencedWriter(
                *wiring, self._clock, sequencer, self._reader.read
            )
            return
        if self._database.is_mysql:
            self.STEPS = self.WHOLE_STEPS  # type: ignore[misc]
        self._reader = reading.Reader(self._database, self._epochs, self._poll)
        self._writer = writing.Writer(*wiring, self._clock)

    @classmethod
    def from_config(cls, conf: cfg.ConfigOpts) -> Self:
        """Make a driver from its group of a configuration.

        :raises ConfigurationError: an option's value cannot work
        """
        return cls(options.read(conf))

    @property
    def options(self) -> options.SQLOptions:
        """How this driver is configured."""
        return self._options

    @property
    def engines(self) -> tuple[sa.Engine, ...]:
        """The open engines, for those who count statements: writers', readers'."""
        return self._database.engines

    @property
    def capabilities(self) -> contract.Capabilities:
        return contract.Capabilities(
            durable=True, max_payload_bytes=self._options.max_payload_bytes
        )

    @property
    def database_url(self) -> str | None:
        return self._options.connection

    def open_existing(self) -> None:
        """Connect and check the schema; nothing is created or migrated.

        :raises StoreMissing: the SQLite file is not there
        """
        engines.require_store(self._options)
        self._opening.open(functools.partial(self._check_database, may_prepare=False))

    def _connect(self) -> None:
        engines.warn_of_plain_password(self._options)
        self._database.open()

    def _check(self) -> None:
        """Check the schema; SQLite's file is created and migrated here.

        :raises ConfigurationError: the server refuses the connection, or cannot serve
        """
        engines.prepare_store(self._options)
        self._check_database(may_prepare=True)

    def _disconnect(self) -> None:
        self._database.close()

    def _check_database(self, *, may_prepare: bool) -> None:
        with failures.translated_at_opening(self._database.url):
            engine, _readers = self._database.engines
            engines.check_galera_node(engine, self._options.ordering)
            present = migration.version(engine)
            if may_prepare and self._may_migrate and migration.pending_at(present):
                self._migrate()
                present = migration.version(engine)
            migration.require(engine, present)
            if self._database.is_mysql:
                self._fit_packets(engine)
        epochs.agree_on_cloud(self._database, self._options.cloud_name, may_write=may_prepare)
        self._epochs.agree_on_ordering()

    @property
    def _may_migrate(self) -> bool:
        return self._options.auto_upgrade or self._database.is_sqlite

    def _migrate(self) -> None:
        migrating = engines.create_for_migration(self._options)
        try:
            migration.sync(migrating)
        finally:
            migrating.dispose()

    def _fit_packets(self, engine: sa.Engine) -> None:
        """Keep statements below what the server takes at once.

        :raises ConfigurationError: it takes no record of the largest size
        """
        with engine.connect() as connection:
            query = sa.text("SELECT @@max_allowed_packet")
            packet_bytes = int(connection.execute(query).scalar_one())
        usable_bytes = (packet_bytes - _PACKET_OVERHEAD_BYTES) // 2
        if self._options.max_payload_bytes > usable_bytes:
            raise errors.ConfigurationError(
                f"[{options.GROUP}] max_payload_bytes",
                self._options.max_payload_bytes,
                f"the server's max_allowed_packet is {packet_bytes}: raise that, or set "
                f"at most {usable_bytes}",
            )
        self._database.statement_bytes = min(database.MAX_STATEMENT_BYTES, usable_bytes)

    def _report_step(self, step: str) -> None:
        # on_step may be set at any time.
        self.on_step(step)

    def _head(self) -> records.Cursor:
        return self._epochs.current().cursor

    def _pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        return self._reader.pages(cursor, namespaces)

    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        return self._reader.fetch(cursor, limit)

    def _has_news(self, cursor: records.Cursor) -> bool:
        return self._reader.has_news(cursor)

    def _read_batch(self, keys: Sequence[records.RecordKey]) -> Iterable[records.Record]:
        return self._reader.read(keys)

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return self._writer.write(writes)

    def _collect(self, keep_seconds: float) -> contract.Collected:
        return self._housekeeper.collect(keep_seconds)

    def _statistics(self) -> Mapping[str, int | float | str]:
        return self._housekeeper.statistics()

    def _reset(self) -> None:
        self._housekeeper.reset()
