# SPDX-License-Identifier: Apache-2.0
"""What the order of requests obeys, as frozen values: classes, weights, discipline, pauses.

Names and meanings are those of the options in ``[nodb_queue]``; the adapter fills
them in from the configuration, and every conductor and scheduler needs the same ones.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping

import attrs

from nova_nodb_scheduler import errors

_CLASSES = "[nodb_queue] classes"
_DEFAULT_CLASS = "[nodb_queue] default_class"
_WEIGHTS = "[nodb_queue] project_weights"


class Order(enum.Enum):
    """Which of the requests of a class goes first."""

    FAIR = "fair"
    FIFO = "fifo"


class Discipline(enum.Enum):
    """What becomes of requests behind one that does not fit."""

    BEST_EFFORT = "best_effort"
    STRICT = "strict"


@attrs.frozen
class PriorityClass:
    """A class of requests; the one with the greater number goes first."""

    name: str
    number: int


def _by_number(classes: Iterable[PriorityClass]) -> tuple[PriorityClass, ...]:
    return tuple(sorted(classes, key=lambda each: each.number))


@attrs.frozen
class QueueSettings:
    """The options, checked. Defaults are the options' own.

    :param classes: from the least to the greatest number, which differ
    :param project_weights: above 0, by project id; 1.0 for all others
    :param aging_seconds: of waiting for which a class's number counts as one more; 0: never
    :param max_pending: servers that may wait in all
    :raises errors.ConfigurationError: no class, two of one name or number, a default
        class that is none of them, a weight that is no number above 0
    """

    classes: tuple[PriorityClass, ...] = attrs.field(
        default=(PriorityClass("low", 0), PriorityClass("normal", 50), PriorityClass("high", 100)),
        converter=_by_number,
    )
    default_class: str = "normal"
    project_weights: Mapping[str, float] = attrs.field(factory=dict)
    order: Order = Order.FAIR
    discipline: Discipline = Discipline.BEST_EFFORT
    aging_seconds: float = 3600.0
    hold_after_seconds: float = 60.0
    hold_seconds: float = 600.0
    max_pending: int = 100_000
    max_pending_per_project: int = 1000
    lease_seconds: float = 30.0
    least_backoff_seconds: float = 1.0
    most_backoff_seconds: float = 60.0

    def __attrs_post_init__(self) -> None:
        names = [each.name for each in self.classes]
        if not names:
            raise errors.ConfigurationError(_CLASSES, "", "name one class at least")
        _refuse_twice(names, "class")
        _refuse_twice([each.number for each in self.classes], "number")
        if self.default_class not in names:
            raise errors.ConfigurationError(
                _DEFAULT_CLASS, self.default_class, f"choose one of {', '.join(names)}"
            )
        for project, weight in self.project_weights.items():
            if not (weight > 0 and math.isfinite(weight)):
                raise errors.ConfigurationError(
                    _WEIGHTS, f"{project}:{weight}", "give a number above 0"
                )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, from the least."""
        return tuple(each.name for each in self.classes)

    def class_index(self, name: str) -> int:
        """Return a class's place among the classes, from 0, the least.

        A name that is none of them counts as the least: the record is of a process with
        other options, and must not overtake anybody for that.
        """
        for index, each in enumerate(self.classes):
            if each.name == name:
                return index
        return 0

    def level(self, class_index: int, waited_seconds: float) -> int:
        """Return the place of the class that a request counts as, after it has waited.

        That is the greatest class whose number its own has reached, at one more for every
        ``aging_seconds``. Between two classes nothing changes: within a class the shares
        decide, however long somebody has waited.
        """
        if not self.aging_seconds:
            return class_index
        number = self.classes[class_index].number + max(0.0, waited_seconds) // self.aging_seconds
        level = class_index
        while level + 1 < len(self.classes) and self.classes[level + 1].number <= number:
            level += 1
        return level

    def seconds_to_level(self, class_index: int, level: int) -> float:
        """Return how long a request of a class waits until it counts as a greater one."""
        if not self.aging_seconds:
            return math.inf
        return (self.classes[level].number - self.classes[class_index].number) * self.aging_seconds

    def backoff_seconds(self, refusals: int) -> float:
        """Return the pause after an attempt without room, the ``refusals``-th in a row."""
        doublings = min(max(refusals, 1) - 1, 64)
        return min(self.least_backoff_seconds * 2.0**doublings, self.most_backoff_seconds)


def parse_classes(texts: Iterable[str]) -> tuple[PriorityClass, ...]:
    """Read ``name:number`` each.

    :raises errors.ConfigurationError: a text is none
    """
    return tuple(_class_of(text) for text in texts)


def parse_weights(texts: Mapping[str, str]) -> dict[str, float]:
    """Read weights by project id.

    :raises errors.ConfigurationError: a text is no number
    """
    weights = {}
    for project, text in texts.items():
        try:
            weights[project] = float(text)
        except ValueError as error:
            raise errors.ConfigurationError(
                _WEIGHTS, f"{project}:{text}", "give a number above 0"
            ) from error
    return weights


def _class_of(text: str) -> PriorityClass:
    name, _, number = (part.strip() for part in text.partition(":"))
    remedy = "give each class as NAME:NUMBER, a whole number, as in normal:50"
    if not name:
        raise errors.ConfigurationError(_CLASSES, text, remedy)
    try:
        return PriorityClass(name, int(number))
    except ValueError as error:
        raise errors.ConfigurationError(_CLASSES, text, remedy) from error


def _refuse_twice(values: list[str] | list[int], what: str) -> None:
    twice = sorted({str(value) for value in values if values.count(value) > 1})  # type: ignore[arg-type]
    if twice:
        raise errors.ConfigurationError(
            _CLASSES, ", ".join(twice), f"give each {what} once: classes are told apart by it"
        )
