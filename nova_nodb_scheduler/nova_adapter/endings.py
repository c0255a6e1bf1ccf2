# SPDX-License-Identifier: Apache-2.0
"""Ends what a manager of Nova started for the plugin, whichever way its service ends."""

from __future__ import annotations

from typing import Any


class EndsWithService:
    """To be named before Nova's manager among the bases.

    Not an ABC: Nova's managers have a metaclass of their own.
    """

    def nodb_stop(self) -> None:
        """Stop what was started; idempotent. The manager defines it."""
        raise NotImplementedError

    def cleanup_host(self) -> None:
        """Stop, then let Nova clean up; idempotent."""
        self.nodb_stop()
        super().cleanup_host()  # type: ignore[misc]

    def graceful_shutdown(self, *args: Any, **kwargs: Any) -> None:
        """Stop after Nova has finished its requests; Nova before 33 has no such method."""
        inherited = getattr(super(), "graceful_shutdown", None)
        try:
            if inherited is not None:
                inherited(*args, **kwargs)
        finally:
            self.nodb_stop()
