# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line, within their range: types for argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any


def within(
    kind: Callable[[str], Any], least: float, most: float = float("inf"), *, above: bool = False
) -> Callable[[str], Any]:
    """Return a type for argparse, which refuses what is no number or outside the range.

    :param kind: ``int`` or ``float``
    :param above: the least is excluded itself
    """

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
        # Not a number is within no range, nor is an infinite one: nothing can wait for so long.
        if (
            not (least < value if above else least <= value)
            or not value <= most
            or value == math.inf
        ):
            bounds = f"above {least:g} and up to" if above else f"within {least:g} to"
            raise argparse.ArgumentTypeError(f"{text} is not {bounds} {most:g}")
        return value

    return parse
