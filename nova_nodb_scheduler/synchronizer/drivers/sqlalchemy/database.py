# SPDX-License-Identifier: Apache-2.0
"""An open database: connections for readers and writers, retries, errors translated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import sqlalchemy as sa
import tenacity

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, failures

_Result = TypeVar("_Result")


class Database:
    """One engine and the rules of its use; safe for use by several threads.

    :param timeout_seconds: after this time nothing is tried again
    """

    def __init__(self, engine: sa.Engine, timeout_seconds: float) -> None:
        self.engine = engine
        self.name = failures.backend_name(engine.url)
        self.timeout_seconds = timeout_seconds
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(failures.is_contention),
            stop=tenacity.stop_after_delay(timeout_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.2),
            reraise=True,
        )

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextlib.contextmanager
    def reader(self) -> Iterator[sa.Connection]:
        """Lend a connection; every statement sees what was committed before it.

        (In SQLite all statements see what the first one saw.)
        """
        with failures.translated(self.name), self.engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def writer(self) -> Iterator[sa.Connection]:
        """Lend a connection in a transaction that is committed at the end.

        Errors are not translated, so that :meth:`repeat` can tell them apart.
        """
        with self.engine.connect() as connection, engines.as_writer(connection).begin():
            yield connection

    def repeat(self, transaction: Callable[[], _Result]) -> _Result:
        """Carry out a transaction, again where it lost against another's locks.

        :raises BackendUnavailable: it did not come through
        """
        with failures.translated(self.name):
            return self._retrying(transaction)

    def unavailable(self, reason: str) -> errors.BackendUnavailable:
        """Return the error for a reason of our own."""
        return errors.BackendUnavailable(self.name, reason)

    def close(self) -> None:
        """Close pooled connections; those lent are closed at their return."""
        self.engine.dispose()
