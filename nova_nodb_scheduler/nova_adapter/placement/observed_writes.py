# SPDX-License-Identifier: Apache-2.0
"""Sees what this process writes to Placement through Nova's report client.

All of Nova's writes go through four methods of ``SchedulerReportClient``, in
every supported release; they are wrapped, as the objects are. After Nova's
call, whatever became of it, the providers and consumers it named are told to
one observer, which must neither block nor raise. What Nova gets is its own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from nova.scheduler.client import report

LOG = logging.getLogger(__name__)

_WRITES = ("put", "post", "delete")


@attrs.frozen
class Write:
    """One call that changed something in Placement, or may have.

    :param placed: resources by provider and consumer, where the call is known
        to have given new consumers exactly these and done nothing else
    :param providers: providers that it touched otherwise
    :param consumers: consumers whose former providers it does not name
    """

    placed: Mapping[str, Mapping[str, Mapping[str, int]]] = attrs.field(factory=dict)
    providers: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()


Observer = Callable[[Write], None]

_observer: Observer | None = None


def install(observer: Observer | None) -> None:
    """Tell an observer of the writes of this process; None: nobody.

    Idempotent. Tests that replace the client's methods call it afterwards.
    """
    global _observer
    _observer = observer
    if observer is None:
        return
    for name in _WRITES:
        method = getattr(report.SchedulerReportClient, name)
        if not hasattr(method, "_nodb"):
            setattr(report.SchedulerReportClient, name, _observed(name, method))


def uninstall(observer: Observer) -> None:
    """Stop telling an observer; no-op if it was replaced by another."""
    global _observer
    if _observer == observer:
        _observer = None


def _observed(name: str, method: Any) -> Any:
    @functools.wraps(method)
    def observed(self: Any, url: str, *args: Any, **kwargs: Any) -> Any:
        body = kwargs.get("data", args[0] if args and name != "delete" else None)
        return observe(url, body, lambda: method(self, url, *args, **kwargs))

    observed._nodb = True  # type: ignore[attr-defined]
    return observed


def observe(url: str, body: Any, call: Callable[[], Any]) -> Any:
    """Make a call that writes to Placement, and tell the observer of it; return its answer.

    For calls beside the client's methods, which do so themselves.
    """
    succeeded = False
    try:
        response = call()
        succeeded = response.status_code < 300
        refused = not succeeded and response.status_code < 500
    except BaseException:
        refused = False
        raise
    finally:
        if _observer is not None and not refused:
            _tell(url, body, succeeded=succeeded)
    return response


def _tell(url: str, body: Any, *, succeeded: bool) -> None:
    try:
        write = read(url, body, succeeded=succeeded)
        if write is not None and _observer is not None:
            _observer(write)
    except Exception:
        # The sweep finds what was not told. Nova's call must not fail for it.
        LOG.exception("Could not tell of a write to Placement.")


def read(url: str, body: Any, *, succeeded: bool) -> Write | None:
    """Return what a call touched; None if nothing that is mirrored.

    :param succeeded: False where it may, or may not, have been carried out
    """
    parts = url.partition("?")[0].strip("/").split("/")
    if parts[0] == "resource_providers":
        named = parts[1] if len(parts) > 1 else (body or {}).get("uuid")
        return Write(providers=frozenset({named} if named else ()))
    if parts[0] == "reshaper":
        touched = _consumers(body["allocations"], succeeded=False)
        return Write(
            providers=touched.providers | frozenset(body["inventories"]),
            consumers=touched.consumers,
        )
    if parts[0] != "allocations":
        return None
    if len(parts) == 1:
        return _consumers(body, succeeded=succeeded)
    if not body:
        return Write(consumers=frozenset({parts[1]}))
    return _consumers({parts[1]: body}, succeeded=succeeded)


def _consumers(body: Mapping[str, Any], *, succeeded: bool) -> Write:
    by_provider: dict[str, dict[str, Mapping[str, int]]] = {}
    former: set[str] = set()
    for consumer, wanted in body.items():
        if wanted.get("consumer_generation") is not None or not wanted["allocations"]:
            former.add(consumer)
        for provider, part in wanted["allocations"].items():
            by_provider.setdefault(provider, {})[consumer] = part["resources"]
    if succeeded and not former:
        return Write(placed=by_provider)
    return Write(providers=frozenset(by_provider), consumers=frozenset(former))
