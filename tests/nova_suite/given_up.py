# SPDX-License-Identifier: Apache-2.0
"""Which failures of Nova's tests say that they ran out of patience, and nothing else.

Nova's tests poll for some seconds, and fail by an AssertionError then as they do over
a wrong state. The helpers that poll are known by their words
(``nova.tests.functional.integrated_helpers``), and most tell what stood there when
they gave up: if that was still under way, nothing that came was wrong. A server in
ERROR, a migration that failed, an action that ended otherwise came, and is what the
test found. Whatever else fails, by words that are not known here too, is a state:
SQLite's "database is locked", an answer 500 of an API, a line that no log has.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tools import subunit_totals

#: An RPC without an answer, and the wait of Nova's fake transport that it comes of.
NO_ANSWER = "oslo_messaging.exceptions.MessagingTimeout"
_EMPTY = "_queue.Empty"

#: By their type alone: that, the time of a whole test, and the project's own.
TYPES = (
    NO_ANSWER,
    "fixtures._fixtures.timeout.TimeoutException",
    subunit_totals.OUT_OF_PATIENCE,
)

#: Statuses of migrations that others follow by themselves.
_MIGRATES = frozenset(
    {
        "accepted",
        "confirming",
        "migrating",
        "None",
        "post-migrating",
        "pre-migrating",
        "preparing",
        "queued",
        "reverting",
        "running",
    }
)


def ran_out_of_patience(tracebacks: Iterable[str]) -> bool:
    """Tell whether each of a failed test's tracebacks ends by patience, and there is one.

    :param tracebacks: the test's own and those of its clean-ups, as testtools tells them
    """
    ends = [subunit_totals.ends(text.splitlines()) for text in tracebacks]
    return bool(ends) and all(map(_is_patience, ends))


def _is_patience(ends: list[str]) -> bool:
    """Tell whether the exceptions of one traceback, the first cause first, are all of patience."""
    if ends and ends[-1].startswith(NO_ANSWER):
        ends = [end for end in ends if end != _EMPTY]
    return bool(ends) and all(_gave_up(end) for end in ends)


def _gave_up(end: str) -> bool:
    name, _, words = end.partition(":")
    if name in TYPES:
        return True
    if name != "AssertionError":
        return False
    for pattern, is_under_way in _WORDS.items():
        found = re.fullmatch(pattern, words.strip())
        if found is not None:
            return is_under_way(found)
    return False


def _server(found: re.Match[str]) -> bool:
    """An action is under way with the server, and it is not in ERROR."""
    server = _read(found["server"], {})
    if server.get("status") in (None, "ERROR"):
        return False
    return server["status"] == "BUILD" or bool(server.get("OS-EXT-STS:task_state"))


def _service(found: re.Match[str]) -> bool:
    """The heartbeats alone are waited for."""
    wanted, service = _read(found["wanted"], {}), _read(found["service"], {})
    return {name for name in wanted if service.get(name) != wanted[name]} == {"state"}


def _event(found: re.Match[str]) -> bool:
    """The action has not begun, or something of it is under way."""
    events = _read(found["events"], [{"result": "unreadable"}])
    return not events or any(not each.get("result") for each in events)


def _migration(found: re.Match[str]) -> bool:
    return found["status"] in _MIGRATES


def _always(_found: re.Match[str]) -> bool:
    return True


def _read(text: str, otherwise: Any) -> Any:
    """Return what Nova printed, or something else where that is no such literal."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return otherwise
    return value if isinstance(value, type(otherwise)) else otherwise


#: Words of the helpers that give up, and whether nothing wrong is told with them.
_WORDS: Mapping[str, Callable[[re.Match[str]], bool]] = {
    r"Wait for state change failed, expected_params=\{.*?\}, server=(?P<server>\{.*\})"
    r"(, wait_for_fault=\w+)?": _server,
    r"Wait for service parameter change failed, expected_params=(?P<wanted>\{.*?\}), "
    r"service=(?P<service>\{.*\})": _service,
    r"Timed out waiting for \S+ instance action event\. Current instance actions: .*\. "
    r"Events in the last matching action: (?P<events>\[.*\])": _event,
    r"Timed out waiting for migration with status for instance \S+ "
    r"\(expected \".*\", got \"(?P<status>.*)\"\)": _migration,
    r"Timed out waiting for volume \S+ to be (attached to|detached from) server .*": _always,
    r"Server failed to delete\.": _always,
}
