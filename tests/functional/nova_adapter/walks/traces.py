# SPDX-License-Identifier: Apache-2.0
"""What ran between a call and its return, and how long a way through our modules it was.

:func:`traced` notes the calls of our functions by the interpreter's own profiling, below
one call: other green threads run on other stacks. Of what it noted it is counted how long the way
of something is:

*Carried* is a call that crosses from one of our modules into another and is given the
thing that walks, or what it has become, as an argument or as its object. What is only
asked for something else (a clock, a generation, whether a thread lives) carries nothing.

*Values* are no steps: the packages in :data:`VALUES` hold what is passed on. Neither are
constructors, properties, lambdas and comprehensions. A function counts once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

import attrs

T = TypeVar("T")

PACKAGE = "nova_nodb_scheduler."
VALUES = ("store", "wire", "model", "observe")

_DRIVERS = "synchronizer.drivers."

#: How deep the walking thing is looked for in lists and dicts, and among how many.
_DEEP, _MANY = 3, 3


@attrs.frozen(order=True)
class Function:
    """One of ours.

    :param module: below the package
    :param name: qualified in the module
    """

    module: str
    name: str

    @property
    def is_step(self) -> bool:
        """Whether it can be one: see the module."""
        last = self.name.rsplit(".", 1)[-1]
        if self.module.split(".")[0] in VALUES or last.startswith("<"):
            return False
        return not (last.startswith("__") and last.endswith("__")) and not self._is_property

    @property
    def _is_property(self) -> bool:
        owner: Any = sys.modules[PACKAGE + self.module]
        *owners, last = self.name.split(".")
        for each in owners:
            owner = getattr(owner, each, None)
        return isinstance(getattr(owner, "__dict__", {}).get(last), property)

    @property
    def is_adapter(self) -> bool:
        return self.module.startswith("nova_adapter")


@attrs.define(eq=False)
class Call:
    """One call of a function of ours, with those that it made.

    :param function: None of what is traced itself
    :param carries: whether it was given what walks
    """

    function: Function | None
    carries: bool
    made: list[Call] = attrs.field(factory=list)

    def walk(self) -> Iterator[tuple[Function | None, Call]]:
        """Yield each call below with its caller, in the order in which they began."""
        for call in self.made:
            yield self.function, call
            yield from call.walk()

    def first(self, function: Function) -> Call:
        """Return the first call of a function below.

        :raises LookupError: it was not called
        """
        for _caller, call in self.walk():
            if call.function == function:
                return call
        raise LookupError(f"{function} was not called")

    def functions(self) -> list[Function]:
        """Return each function that ran, its own first, in the order of their first calls."""
        own = [] if self.function is None else [self.function]
        return list(dict.fromkeys([*own, *(_function(call) for _caller, call in self.walk())]))

    @property
    def goes_on(self) -> bool:
        """Whether something of another module, which is no value, was called for it."""
        own = _function(self).module
        return any(
            _function(call).module != own
            and _function(call).module.split(".")[0] not in VALUES
            and not _function(call).name.endswith("__init__")
            for _caller, call in self.walk()
        )


def _function(call: Call) -> Function:
    assert call.function is not None
    return call.function


def hops(root: Call) -> dict[Function, Function | None]:
    """Return the steps of a request through the adapter, with who called each.

    Carried calls into the adapter, from it, or within it, that go on: a function that
    nothing of another module is called for is an answer, and no step of the way.
    """
    found: dict[Function, Function | None] = {}
    for caller, call in root.walk():
        function = _function(call)
        crosses = caller is None or caller.module != function.module
        adapter = caller is None or caller.is_adapter or function.is_adapter
        if crosses and adapter and function.is_step and call.carries and call.goes_on:
            found.setdefault(function, caller)
    return found


def modules(root: Call, below: str) -> dict[str, Function]:
    """Return the modules of a package on the way of a call, each with its first step there.

    Carried calls from another module, whether or not they go on. A driver's own package
    counts as one module, whatever it is made of; what drivers share counts by the module.
    """
    own = _function(root)
    found = {_room(own.module): own}
    for caller, call in root.walk():
        function = _function(call)
        crosses = caller is not None and _room(caller.module) != _room(function.module)
        if crosses and function.module.startswith(below) and function.is_step and call.carries:
            found.setdefault(_room(function.module), function)
    return found


def _room(module: str) -> str:
    """Return a module, or the package of the driver that it is of."""
    parts = module.split(".")
    if module.startswith(_DRIVERS) and parts[2] != "support":
        return ".".join(parts[:3])
    return module


def traced(
    what: Callable[[], T], kinds: Collection[str], names: Collection[str] = ()
) -> tuple[T, Call]:
    """Call something, and return its answer and the calls of ours below it.

    :param kinds: names of the classes that walk
    :param names: strings that walk, as the servers' uuids do
    """
    root = Call(None, True)
    # Frames are kept for the time of the trace: one that is gone would be another one's key.
    calls: dict[FrameType, Call] = {sys._getframe(): root}

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith(PACKAGE):
            return
        caller = frame.f_back
        while caller is not None and caller not in calls:
            caller = caller.f_back
        if caller is not None:
            function = Function(module.removeprefix(PACKAGE), frame.f_code.co_qualname)
            calls[frame] = Call(function, _carries(frame, kinds, names))
            calls[caller].made.append(calls[frame])

    sys.setprofile(note)
    try:
        return what(), root
    finally:
        sys.setprofile(None)


def _carries(frame: FrameType, kinds: Collection[str], names: Collection[str]) -> bool:
    code = frame.f_code
    variadic = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    count = code.co_argcount + code.co_kwonlyargcount + variadic
    given = (frame.f_locals.get(name) for name in code.co_varnames[:count])
    return any(_holds(value, kinds, names) for value in given)


def _holds(value: Any, kinds: Collection[str], names: Collection[str], depth: int = 0) -> bool:
    if type(value).__name__ in kinds:
        return True
    if isinstance(value, str):
        return value in names
    inside: list[Any] = []
    if depth < _DEEP and isinstance(value, list | tuple | set | frozenset):
        inside = list(value)[:_MANY]
    elif depth < _DEEP and isinstance(value, Mapping):
        inside = [*list(value)[:_MANY], *list(value.values())[:_MANY]]
    return any(_holds(each, kinds, names, depth + 1) for each in inside)
