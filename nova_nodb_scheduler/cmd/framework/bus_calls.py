# SPDX-License-Identifier: Apache-2.0
"""Bounds calls over the message bus, its connection included, and says why none is answered.

The commands that ask schedulers are made of :class:`AskingCommand`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, command, guard, number_arguments

#: The library's loggers; those of its drivers are below it.
_LIBRARY = "oslo.messaging"


_RETRYING = re.compile(r" \(retrying in [^)]*\)$")


class _Heard(logging.Handler):
    """Keeps the last error that the library logged: it tries again, and raises nothing."""

    def __init__(self, address: str) -> None:
        super().__init__(logging.ERROR)
        self._address = address
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        args = record.args
        if isinstance(args, Mapping) and {"hostname", "port", "err_str"} <= args.keys():
            address, said = "{hostname}:{port}".format(**args), str(args["err_str"])
        else:
            address, said = self._address, _RETRYING.sub("", record.getMessage())
        if "timed out" in said:
            # No news: that there is no answer is what it explains.
            return
        self.last = f"message bus {address}: {said}"


class BusCalls:
    """Carries calls out; any thread.

    Where nobody has answered yet and a call has run out of its time, the next
    ones are not waited for: it is the bus, and each would take as long.

    :param address: of the bus, without credentials
    :param timeout_seconds: of one call
    :param deadline: of all together
    """

    def __init__(
        self, address: str, timeout_seconds: float, deadline: bounded.Deadline | None = None
    ) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._deadline = deadline
        self._heard = _Heard(address)
        self._unanswered: errors.NoAnswerInTime | None = None
        self._answered = False
        logging.getLogger(_LIBRARY).addHandler(self._heard)

    def call(self, call: Callable[[], Any]) -> Any:
        """Call, and return the answer.

        :raises NoAnswerInTime: there is none within the bound
        :raises NotReached: the bus refuses this process
        """
        unanswered = self._unanswered
        if unanswered is not None and not self._answered:
            raise unanswered
        bound_seconds = self._timeout_seconds
        if self._deadline is not None:
            bound_seconds = self._deadline.within(bound_seconds)
        try:
            answer = bounded.ask(bound_seconds, call)
        except (errors.NoAnswerInTime, oslo_messaging.MessagingTimeout) as error:
            self._unanswered = errors.NoAnswerInTime(bound_seconds, self._heard.last)
            raise self._unanswered from error
        except _refusals() as error:
            raise errors.NotReached(
                f"The message bus at {self._address}",
                guard.said(error),
                "See [DEFAULT] transport_url",
            ) from error
        self._answered = True
        return answer


def _refusals() -> tuple[type[Exception], ...]:
    """Return what a RabbitMQ client raises through the library: a login, a virtual host."""
    amqp = sys.modules.get("amqp")
    return () if amqp is None else (amqp.exceptions.AMQPError,)


class AskingCommand(command.Command):
    """A command with ``--timeout`` that gets a client of the RPC API."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--timeout``."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--timeout",
            type=number_arguments.within(float, 0, 3600, above=True),
            default=bounded.CONNECT_SECONDS,
            metavar="SECONDS",
            help="how long to wait for a scheduler's answer, the connection to the message bus "
            "included (default: %(default)s)",
        )
        return parser

    def deadline(self, args: argparse.Namespace) -> bounded.Deadline:
        """Return the time in which all is to be found out; longer with ``--timeout``."""
        more_seconds = max(0.0, args.timeout - bounded.CONNECT_SECONDS)
        return bounded.Deadline(bounded.LOOK_SECONDS + more_seconds)

    def client(
        self, plugin: Any, args: argparse.Namespace, deadline: bounded.Deadline | None = None
    ) -> tuple[Any, tuple[type[Exception], ...]]:
        """Return a client of the schedulers, and what an unanswered call raises.

        :param deadline: bounds all calls together
        """
        from nova_nodb_scheduler.nova_adapter import rpc_server

        line = BusCalls(rpc_server.bus_address(), args.timeout, deadline)
        return rpc_server.make_client(plugin, args.timeout, line.call), rpc_server.CALL_ERRORS

    @contextlib.contextmanager
    def answered(
        self, expected: tuple[type[Exception], ...], scheduler: str | None
    ) -> Iterator[None]:
        """Say of calls that are not answered who was asked.

        :param scheduler: the host; None for any
        :raises NoAnswer: one was not
        """
        asked = f"scheduler {scheduler}" if scheduler else "any scheduler"
        try:
            yield
        except errors.NoAnswerInTime as error:
            raise errors.NoAnswer(asked, str(error)) from error
        except errors.NodbError:
            raise
        except expected as error:
            raise errors.NoAnswer(asked, f"{type(error).__name__}: {error}") from error

    def context(self) -> Any:
        """Return the context of a call."""
        from nova import context

        return context.get_admin_context()
