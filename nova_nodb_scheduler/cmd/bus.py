# SPDX-License-Identifier: Apache-2.0
"""Bounds calls over the message bus, its connection included, and says why none is answered."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import bounded, guard

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


class Line:
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
