# SPDX-License-Identifier: Apache-2.0
"""Pages that are read ahead are those that are read one by one, errors and all."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.support import read_ahead

_NAME = "pages-of-a-test"
_WAIT_SECONDS = 10.0


def _is_reading() -> bool:
    return any(each.name == _NAME for each in threading.enumerate())


class TestPagesAhead(unittest.TestCase):
    @given(count=st.integers(0, 9), fails=st.booleans(), most=st.integers(0, 12))
    def test_they_come_in_order_up_to_the_end_or_the_error(
        self, count: int, fails: bool, most: int
    ) -> None:
        def pages() -> Iterator[int]:
            yield from range(count)
            if fails:
                raise errors.BackendUnavailable("test", "it is gone")

        ahead = read_ahead.pages_ahead(pages(), _NAME)
        taken: list[int] = []
        try:
            for page in ahead:
                taken.append(page)
                if len(taken) == most:
                    break
        except errors.BackendUnavailable:
            self.assertTrue(fails)
            self.assertEqual(list(range(count)), taken)
        else:
            self.assertEqual(list(range(count))[: len(taken)], taken)
            self.assertTrue(len(taken) == most or (len(taken) == count and not fails))
        ahead.close()  # type: ignore[attr-defined]
        self.assertFalse(_is_reading())

    def test_one_page_is_read_while_its_reader_is_busy_and_no_more(self) -> None:
        begun = [threading.Event() for _ in range(8)]

        def pages() -> Iterator[int]:
            for number, event in enumerate(begun):
                event.set()
                yield number

        ahead = read_ahead.pages_ahead(pages(), _NAME)
        self.assertEqual([0, 1, 2], [next(ahead) for _ in range(3)])
        self.assertTrue(begun[3].wait(_WAIT_SECONDS))
        self.assertFalse(begun[4].wait(0.05))
        self.assertEqual(3, next(ahead))
        self.assertTrue(begun[4].wait(_WAIT_SECONDS))

    def test_few_pages_are_read_without_a_thread(self) -> None:
        threads = set()

        def pages() -> Iterator[int]:
            for number in range(2):
                threads.add(threading.current_thread())
                yield number

        self.assertEqual([0, 1], list(read_ahead.pages_ahead(pages(), _NAME)))
        self.assertEqual({threading.current_thread()}, threads)

    def test_whoever_drops_them_does_not_wait_for_a_page_that_never_comes(self) -> None:
        never = threading.Event()
        self.addCleanup(never.set)

        def pages() -> Iterator[int]:
            yield from range(3)
            never.wait()

        ahead = read_ahead.pages_ahead(pages(), _NAME)
        self.assertEqual([0, 1, 2], [next(ahead) for _ in range(3)])
        closing = threading.Thread(target=ahead.close, daemon=True)  # type: ignore[attr-defined]
        closing.start()
        closing.join(_WAIT_SECONDS)
        self.assertFalse(closing.is_alive())
        self.assertTrue(_is_reading())
