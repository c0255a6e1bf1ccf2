# SPDX-License-Identifier: Apache-2.0
"""An open database: connections for readers and writers, retries, errors translated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import sqlalchemy as sa
import tenacity
from oslo_db import exception as db_exc

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, failures

_Result = TypeVar("_Result")


class Database:
    """Two engines and the rules of their use; safe for use by several threads.

    :param engine: for writers
    :param readers: for those who only read; see :func:`.engines.create_for_readers`
    :param timeout_seconds: after this time nothing is tried again
    """

    def __init__(self, engine: sa.Engine, readers: sa.Engine, timeout_seconds: float) -> None:
        self.engine = engine
        self.readers = readers
        self.name = failures.backend_name(engine.url)
        self.timeout_seconds = timeout_seconds
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(failures.is_contention),
            stop=tenacity.stop_after_delay(timeout_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.2),
            reraise=True,
        )

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

        with failures.translated(self.name):
            return self._use_on_trust(self.readers, answer)

    @contextlib.contextmanager
    def writer(self) -> Iterator[sa.Connection]:
        """Lend a connection in a transaction that is committed at the end.

        Errors are not translated, so that :meth:`repeat` can tell them apart.
        """
        with self.engine.connect() as connection, engines.as_writer(connection).begin():
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
        connection, begun = self._use_on_trust(self.engine, lambda lent: self._begun(lent, begin))
        with contextlib.closing(connection):
            yield connection, begun

    @staticmethod
    def commit(connection: sa.Connection) -> None:
        """Commit a hot writer's transaction, and return its connection if that succeeded."""
        connection.commit()
        Database.give_back(connection)

    @staticmethod
    def give_back(connection: sa.Connection) -> None:
        """Return a connection that is in no transaction to its pool, without an exchange."""
        with engines.trust.granted():
            connection.close()

    @staticmethod
    def _use_on_trust(engine: sa.Engine, use: Callable[[sa.Connection], _Result]) -> _Result:
        """Use a connection that nobody asked whether it lives; a second one if it does not.

        :param use: writes nothing
        """
        try:
            with engines.trust.granted():
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
        with failures.translated(self.name):
            try:
                return transaction()
            except failures.DATABASE_ERRORS as error:
                if not failures.is_contention(error):
                    raise
            # Only now, as tenacity alone takes a tenth of a small write's time.
            return self._retrying(transaction)

    def unavailable(self, reason: str) -> errors.BackendUnavailable:
        """Return the error for a reason of our own."""
        return errors.BackendUnavailable(self.name, reason)

    def close(self) -> None:
        """Close pooled connections; those lent are closed at their return."""
        self.engine.dispose()
        self.readers.dispose()
