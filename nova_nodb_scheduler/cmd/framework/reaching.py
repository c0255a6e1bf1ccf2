# SPDX-License-Identifier: Apache-2.0
"""Reaches what a command needs before its work begins: in bounded time, or by name.

The work itself may take as long as it does. That what it stands on is there
is asked first, of each apart, because a client's own patience is that of a
service: Nova's databases are tried for 100 seconds, the message bus for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, guard

_BACKEND_REMEDY = "Check that it runs, that this host reaches it, and its options in nova.conf"
_API_REMEDY = "Check [api_database] connection, and that the server runs"
_PLACEMENT_REMEDY = "Check [placement], and that keystone and Placement answer"


def backend(make: Callable[[], Any]) -> None:
    """See that a synchronizer's back end answers; that it holds nothing yet is an answer.

    :param make: makes the driver, of which this opens and closes one
    :raises NotReached: it does not within its bound
    :raises NodbError: what the driver says of it
    """

    def look() -> None:
        synchronizer = make()
        try:
            synchronizer.open_existing()
        except (errors.StoreMissing, errors.SchemaMismatch):
            # Whether that will do is the affair of who opens it.
            return
        finally:
            synchronizer.close()

    _ask("The synchronizer's back end", bounded.BACKEND_SECONDS, look, _BACKEND_REMEDY)


@contextlib.contextmanager
def opened(make: Callable[[], Any], *, makes: bool = False) -> Iterator[Any]:
    """Give a driver over a back end that answers, open; it is closed in the end.

    :param makes: whether a store that is not there shall be made
    :raises NotReached: see :func:`backend`
    """
    backend(make)
    synchronizer = make()
    if makes:
        synchronizer.open()
    else:
        synchronizer.open_existing()
    try:
        yield synchronizer
    finally:
        synchronizer.close()


def database(settings: Any) -> None:
    """See that the database of the SQL driver lets it in.

    For a migration, whose own engine has the patience of a migration.

    :param settings: the driver's options
    :raises NotReached: it does not answer within its bound
    :raises ConfigurationError: it refuses its user
    """
    from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, failures

    def look() -> None:
        engine = engines.create(settings)
        try:
            with failures.translated_at_opening(engine.url), engine.connect():
                pass
        finally:
            engine.dispose()

    _ask("The synchronizer's database", bounded.BACKEND_SECONDS, look, _BACKEND_REMEDY)


def api_database(plugin: Any) -> None:
    """See that Nova's API database answers.

    :raises NotReached: it does not within its bound
    """
    _ask(
        "Nova's API database",
        bounded.CONNECT_SECONDS,
        lambda: plugin.scopes.connect("api"),
        _API_REMEDY,
    )


def cells(plugin: Any) -> list[str]:
    """Return the uuids of all cells, out of the API database.

    :raises NotReached: it does not answer, or not as a database of Nova's
    """

    def look() -> list[str]:
        found: list[str] = plugin.scopes.all_cells()
        return found

    if not plugin.scopes.has_api_database():
        raise errors.ConfigurationError(
            "[api_database] connection", None, "the cells stand there: run this where it is set"
        )
    api_database(plugin)
    found: list[str] = _ask("Nova's API database", bounded.LOOK_SECONDS, look, _API_REMEDY)
    return found


def silent_databases(plugin: Any, scopes: Collection[str]) -> dict[str, str]:
    """Say which scopes' databases do not answer, and why; asks all at once.

    :param scopes: cells, or ``api``
    """

    def connect(scope: str) -> Callable[[], None]:
        return lambda: plugin.scopes.connect(scope)

    asked = {scope: bounded.BoundedQuestion(connect(scope)) for scope in scopes}
    deadline = bounded.Deadline(bounded.CONNECT_SECONDS)
    found = {}
    for scope, question in asked.items():
        try:
            question.answer(deadline.within(bounded.CONNECT_SECONDS))
        except errors.NoAnswerInTime:
            found[scope] = str(errors.NoAnswerInTime(bounded.CONNECT_SECONDS))
        except Exception as error:  # noqa: BLE001 - whatever a database driver raises
            found[scope] = guard.said(error)
    return found


def placement() -> Any:
    """Return Nova's client of Placement, which answers.

    :raises NotReached: keystone or Placement does not, or refuses
    """
    from nova.scheduler.client import report

    def look() -> Any:
        client = report.report_client_singleton()
        # An empty list, and only for who may read allocations.
        answer = client.get(f"/allocations/{_NOBODY}")
        if answer is None or answer.status_code != _OK:
            said = "nothing" if answer is None else f"status {answer.status_code}"
            raise errors.NotReached("Placement", f"it answers {said}", _PLACEMENT_REMEDY)
        return client

    return _ask("Placement", bounded.CONNECT_SECONDS, look, _PLACEMENT_REMEDY)


def placement_database(database: Any) -> None:
    """See that Placement's own database lets somebody in.

    :raises NotReached: it does not answer within its bound
    :raises PlacementDatabaseError: it says why not
    """
    remedy = "Check the URL, and that the server runs"
    _ask(
        f"Placement's database {database.name}",
        bounded.CONNECT_SECONDS,
        database.connect,
        remedy,
    )


_NOBODY = "00000000-0000-0000-0000-000000000000"
_OK = 200


def _ask(what: str, bound_seconds: float, look: Callable[[], Any], remedy: str) -> Any:
    try:
        return bounded.ask(bound_seconds, look)
    except errors.NoAnswerInTime as error:
        raise errors.NotReached(what, str(error), remedy) from error
    except errors.NodbError:
        raise
    except Exception as error:
        raise errors.NotReached(what, guard.said(error), remedy) from error
