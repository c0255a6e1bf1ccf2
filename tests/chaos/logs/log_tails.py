# SPDX-License-Identifier: Apache-2.0
"""What services write into their logs from some moment on."""

import pathlib
from collections.abc import Iterable, Iterator


class LogTail:
    """What is written to one log since this was made.

    :param log: one that is not there yet is read from its begin
    """

    def __init__(self, log: pathlib.Path) -> None:
        self._log = log
        self._offset = self.size()

    @property
    def process(self) -> str:
        """The name of whose log it is."""
        return self._log.stem

    def size(self) -> int:
        """Return how long the log is; 0 for one that is not there."""
        return self._log.stat().st_size if self._log.exists() else 0

    def lines(self) -> Iterator[str]:
        """Yield all lines so far, with their ends."""
        if self._log.exists():
            with self._log.open(errors="replace") as file:
                file.seek(self._offset)
                yield from file


def lines(tails: Iterable[LogTail]) -> Iterator[str]:
    """Yield the lines of several logs, one log behind the other."""
    for tail in tails:
        yield from tail.lines()
