# SPDX-License-Identifier: Apache-2.0
"""Patches a process for Nova's threading mode, as Nova's own entry points do."""

from __future__ import annotations

import importlib
import inspect


def for_threads() -> None:
    """Choose native threads where Nova leaves the choice; call it before importing Nova.

    From 33 on each entry point says which back end it wants; before, there is
    nothing to choose.
    """
    monkey_patch = importlib.import_module("nova.monkey_patch")
    patch = getattr(monkey_patch, "patch", None)
    if patch is not None and "backend" in inspect.signature(patch).parameters:
        patch(backend="threading")
