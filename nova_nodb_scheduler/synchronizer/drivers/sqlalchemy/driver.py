# SPDX-License-Identifier: Apache-2.0
"""The SQL synchronizer: the contract's methods, handed to the parts that do them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import attrs
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


@attrs.frozen
class _Parts:
    """What exists between ``open()`` and ``close()``."""

    database: database.Database
    reader: reading.Reader
    writer: writing.Writer
    housekeeper: housekeeping.Housekeeper
    clock: housekeeping.Clock


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
        self._url = engines.parse(sql_options.connection)
        super().__init__(sql_options.poll_intervals())
        self._lock = threading.Lock()
        self._opened: _Parts | None = None
        if sql_options.ordering == schema.SEQUENCER:
            self.STEPS = self.SEQUENCER_STEPS  # type: ignore[misc]
        elif self._url.get_backend_name() == "mysql":
            self.STEPS = self.WHOLE_STEPS  # type: ignore[misc]

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
        opened = self._parts.database
        return opened.engine, opened.readers

    @property
    def capabilities(self) -> contract.Capabilities:
        return contract.Capabilities(
            durable=True,
            shared=True,
            feed=contract.Feed.POLL,
            max_payload_bytes=self._options.max_payload_bytes,
        )

    def open(self) -> None:
        """Connect and check the schema; SQLite's file is created and migrated here.

        :raises ConfigurationError: the server refuses the connection, or cannot serve
        """
        self._open(may_prepare=True)

    def open_existing(self) -> None:
        """Connect and check the schema; nothing is created or migrated.

        :raises StoreMissing: the SQLite file is not there
        """
        self._open(may_prepare=False)

    def _open(self, *, may_prepare: bool) -> None:
        with self._lock:
            if self._opened is not None:
                return
            if may_prepare:
                engines.prepare_store(self._options)
            else:
                engines.require_store(self._options)
            engines.warn_of_plain_password(self._options)
            engine = engines.create(self._options)
            try:
                with failures.translated_at_opening(self._url):
                    engines.check_galera_node(engine, self._options.ordering)
                    if may_prepare:
                        self._prepare_schema(engine)
                    migration.require(engine)
                    limits = self._limits(engine)
                readers = engines.create_for_readers(self._options)
            except BaseException:
                engine.dispose()
                raise
            opened = database.Database(engine, readers, self._options.timeout_seconds)
            keeper = epochs.Epochs(opened, self._options.ordering, self._report_step)
            try:
                epochs.agree_on_cloud(opened, self._options.cloud_name, may_write=may_prepare)
                keeper.agree_on_ordering()
            except BaseException:
                opened.close()
                raise
            self._opened = self._make_parts(opened, keeper, limits)

    def _make_parts(
        self, opened: database.Database, keeper: epochs.Epochs, limits: writing.Limits
    ) -> _Parts:
        sequencer = None
        if self._options.ordering == schema.SEQUENCER:
            sequencer = sequencing.Sequencer(opened, keeper, self._report_step)
        reader = reading.Reader(opened, keeper, self._poll, sequencer)
        clock = housekeeping.Clock(opened)
        if sequencer is None:
            writer = writing.Writer(opened, keeper, limits, self._report_step, clock)
        else:
            writer = writing.SequencedWriter(
                opened, keeper, limits, self._report_step, clock, sequencer, reader.read
            )
        return _Parts(
            database=opened,
            reader=reader,
            writer=writer,
            housekeeper=housekeeping.Housekeeper(opened, keeper, self._report_step),
            clock=clock,
        )

    def _prepare_schema(self, engine: sa.Engine) -> None:
        embedded = engine.dialect.name == "sqlite"
        if (embedded or self._options.auto_upgrade) and migration.pending(engine):
            migrating = engines.create_for_migration(self._options)
            try:
                migration.sync(migrating)
            finally:
                migrating.dispose()

    def _limits(self, engine: sa.Engine) -> writing.Limits:
        limits = writing.Limits(self._options.max_payload_bytes)
        if engine.dialect.name != "mysql":
            return limits
        with engine.connect() as connection:
            query = sa.text("SELECT @@max_allowed_packet")
            packet_bytes = int(connection.execute(query).scalar_one())
        usable_bytes = (packet_bytes - _PACKET_OVERHEAD_BYTES) // 2
        if limits.payload_bytes > usable_bytes:
            raise errors.ConfigurationError(
                f"[{options.GROUP}] max_payload_bytes",
                limits.payload_bytes,
                f"the server's max_allowed_packet is {packet_bytes}: raise that, or set "
                f"at most {usable_bytes}",
            )
        return attrs.evolve(limits, statement_bytes=min(limits.statement_bytes, usable_bytes))

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.database.close()

    def _report_step(self, step: str) -> None:
        # on_step may be set at any time.
        self.on_step(step)

    @property
    def _parts(self) -> _Parts:
        opened = self._opened
        if opened is None:
            raise errors.BackendUnavailable(
                failures.backend_name(self._url), "it has not been opened"
            )
        return opened

    def head(self) -> records.Cursor:
        return self._parts.reader.head()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        return self._parts.reader.snapshot(namespaces)

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        return self._parts.reader.fetch(cursor, limit)

    def _has_news(self, cursor: records.Cursor) -> bool:
        return self._parts.reader.has_news(cursor)

    def _read_batch(
        self, keys: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        return self._parts.reader.read(keys)

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return self._parts.writer.write(writes)

    def now_seconds(self) -> float:
        return self._parts.clock.now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        return self._parts.housekeeper.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        return self._parts.housekeeper.statistics()

    def reset(self) -> None:
        self._parts.housekeeper.reset()
