# SPDX-License-Identifier: Apache-2.0
"""The next page of a snapshot is read while its reader is busy with this one.

A back end needs a part of the time for a page that its reader needs to decode and keep it; one
behind the other, a start waits for both.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

_Page = TypeVar("_Page")

#: Pages before the thread is begun: most snapshots are of a few records, and have fewer.
_PAGES_ALONE = 2
#: A thread that is not waited for any longer ends with the exchange that it is in.
_JOIN_SECONDS = 1.0


def pages_ahead(pages: Iterator[_Page], name: str) -> Iterator[_Page]:
    """Yield the same pages, of which one more is read meanwhile, in a thread of this iterator.

    The thread begins behind the first pages. It ends behind the last one, with an error, which
    is raised when its page is asked for, or when this is closed or dropped: then an exchange
    that is under way comes to its end unheard, and is waited for no longer than a second.

    :param pages: nobody else may go on with them
    :param name: of the thread
    """
    for _ in range(_PAGES_ALONE):
        try:
            page = next(pages)
        except StopIteration:
            return
        yield page
        del page  # not held while the next one is waited for
    asked: queue.Queue[bool] = queue.Queue()
    told: queue.Queue[_Page | BaseException] = queue.Queue()

    def read() -> None:
        while asked.get():
            try:
                told.put(next(pages))
            except BaseException as error:  # noqa: BLE001 - it is raised where the page is asked for
                # Whoever waits for a page waits without a limit: nothing ends this unheard.
                told.put(error)
                return

    reader = threading.Thread(target=read, name=name, daemon=True)
    reader.start()
    try:
        asked.put(True)
        while not isinstance(taken := told.get(), BaseException):
            asked.put(True)
            yield taken
            del taken
    finally:
        asked.put(False)
        reader.join(_JOIN_SECONDS)
    if not isinstance(taken, StopIteration):
        raise taken
