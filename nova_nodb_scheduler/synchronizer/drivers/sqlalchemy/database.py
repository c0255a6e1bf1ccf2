# SPDX-License-Identifier: Apache-2.0
"""The edge to a database: connections for readers and writers, retries, errors translated."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import sqlalchemy as sa
import tenacity
from oslo_db import exception as db_exc

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, failures
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as options_module

#: Payload per upsert statement.
MAX_STATEMENT_BYTES = 4 << 20

#: A connection that was used no longer ago is not asked whether it lives, where it is silent.
#: A server that froze since, or a path that went without a word, is found out by the statement.
FRESH_SECONDS = 2.0

#: In a connection's ``info``: when it was given back, by time.monotonic().
_GIVEN_BACK_AT = "nodb_given_back_at"

_Result = TypeVar("_Result")


class Database:
    """Two engines and the rules of their use; any thread may call.

    :raises ConfigurationError: the connection cannot be served
    """

    def __init__(self, options: options_module.SQLOptions) -> None:
        self._options = options
        self.url = engines.parse(options.connection)
        self.name = failures.backend_name(self.url)
        #: After this time nothing is tried again.
        self.timeout_seconds = options.timeout_seconds
        #: As much payload as one statement may carry, a single larger one excepted.
        self.statement_bytes = MAX_STATEMENT_BYTES
        self._engines: tuple[sa.Engine, ...] = ()
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(failures.is_contention),
            stop=tenacity.stop_after_delay(options.timeout_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.2),
            reraise=True,
        )

    def open(self) -> None:
        """Make the engines; connections are made as needed. Idempotent.

        :raises ConfigurationError: the connection cannot be served
        """
        if not self._engines:
            self._engines = (
                engines.create(self._options),
                engines.create_for_readers(self._options),
            )

    def close(self) -> None:
        """Close pooled connections; those lent are closed at their return. Idempotent."""
        opened, self._engines = self._engines, ()
        for engine in opened:
            engine.dispose()

    @property
    def engines(self) -> tuple[sa.Engine, ...]:
        """The writers' engine and the readers'.

        :raises BackendUnavailable: the client is not open
        """
        opened = self._engines
        if not opened:
            raise self.unavailable("the client is not open")
        return opened

    @property
    def is_mysql(self) -> bool:
        """Whether it is MariaDB or MySQL."""
        return self.url.get_backend_name() == "mysql"

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of SQLite, or its memory."""
        return self.url.get_backend_name() == "sqlite"

    def connect(self) -> sa.Connection:
        """Lend a writer's connection, in no transaction yet; errors are not translated."""
        return self.engines[0].connect()

    def connect_alive(self, suits: Callable[[sa.Connection], bool]) -> sa.Connection | None:
        """Lend a writer's connection that lives, for one statement that commits.

        Of such a statement nobody could tell what became of it where the connection ends. So
        one that has rested is asked first, by an exchange; of one that was in use a moment
        ago it is enough that its server has not ended it.

        :param suits: whether a connection is wanted for that, without an exchange
        :returns: None where it is not; nothing was asked then
        """
        with engines.trust:
            connection = self.engines[0].connect()
            if not suits(connection):
                connection.close()
                return None
            rested_since = connection.info.get(_GIVEN_BACK_AT, -math.inf)
            is_fresh = time.monotonic() - rested_since <= FRESH_SECONDS
            if is_fresh and engines.is_silent(connection):
                return connection
            connection.close()
        connection = self.connect()
        if suits(connection):
            return connection
        # Another server than before.
        connection.close()
        return None

    def ask(self, question: Callable[[sa.Connection], _Result]) -> _Result:
        """Answer a question by reading; every statement sees what was committed before it.

        (In SQLite all statements see what the first one saw.) No exchange but
        the question's own: there is no transaction to roll back, and a pooled
        connection that the server ended is found out by the first statement.

        :param question: may be asked twice
        """

        def answer(connection: sa.Connection) -> _Result:
            with contextlib.closing(connection):
                found = question(connection)
                self.give_back(connection)
            return found

        with self.translated():
            return self._use_on_trust(self.engines[1], answer)

    @contextlib.contextmanager
    def writer(self) -> Iterator[sa.Connection]:
        """Lend a connection in a transaction that is committed at the end.

        Errors are not translated, so that :meth:`repeat` can tell them apart.
        """
        with self.connect() as connection, engines.as_writer(connection).begin():
            yield connection

    @contextlib.contextmanager
    def hot_writer(
        self, begin: Callable[[sa.Connection], _Result]
    ) -> Iterator[tuple[sa.Connection, _Result]]:
        """Lend a connection in a writer's transaction, with no exchange but its own.

        :meth:`writer` asks a pooled connection whether it lives and rolls it
        back when it returns: two exchanges. Here the first statement finds
        that out, and is said again on a new connection; behind a commit there
        is nothing to roll back. The borrower ends it with :meth:`commit`;
        errors are not translated.

        :param begin: the first statement; may lock, must not write
        """
        connection, begun = self._use_on_trust(
            self.engines[0], lambda lent: self._begun(lent, begin)
        )
        with contextlib.closing(connection):
            yield connection, begun

    @staticmethod
    def commit(connection: sa.Connection) -> None:
        """Commit a hot writer's transaction, and return its connection if that succeeded."""
        connection.commit()
        Database.give_back(connection)

    @staticmethod
    def give_back(connection: sa.Connection) -> None:
        """Return a connection to its pool, without an exchange.

        :param connection: in no transaction, and just used
        """
        connection.info[_GIVEN_BACK_AT] = time.monotonic()
        with engines.trust:
            connection.close()

    @staticmethod
    def _use_on_trust(engine: sa.Engine, use: Callable[[sa.Connection], _Result]) -> _Result:
        """Use a connection that nobody asked whether it lives; a second one if it does not.

        :param use: writes nothing
        """
        try:
            with engines.trust:
                connection = engine.connect()
            return use(connection)
        except db_exc.DBConnectionError:
            # The server ended it while it was pooled; nothing was written.
            return use(engine.connect())

    @staticmethod
    def _begun(
        connection: sa.Connection, begin: Callable[[sa.Connection], _Result]
    ) -> tuple[sa.Connection, _Result]:
        try:
            engines.as_writer(connection).begin()
            return connection, begin(connection)
        except BaseException:
            connection.close()
            raise

    def repeat(self, transaction: Callable[[], _Result]) -> _Result:
        """Carry out a transaction, again where it lost against another's locks.

        :raises BackendUnavailable: it did not come through
        """
        with self.translated():
            try:
                return transaction()
            except failures.DATABASE_ERRORS as error:
                if not failures.is_contention(error):
                    raise
            # Only now, as tenacity alone takes a tenth of a small write's time.
            return self._retrying(transaction)

    def translated(
        self, leave: Callable[[BaseException], bool] = lambda _error: False
    ) -> contextlib.AbstractContextManager[None]:
        """Turn database errors into BackendUnavailable; leave a server that takes no writes.

        :param leave: tells which errors are left as they are
        """
        return failures.translated(self.name, leave, self._leave_server)

    def _leave_server(self) -> None:
        # One that a failover demoted keeps its connections, and would be asked as long as they
        # live, by readers, too, though the address leads to another by now.
        for engine in self._engines:
            engine.dispose()

    def unavailable(self, reason: str) -> errors.BackendUnavailable:
        """Return the error for a reason of our own."""
        return errors.BackendUnavailable(self.name, reason)
