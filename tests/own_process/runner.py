# SPDX-License-Identifier: Apache-2.0
"""Runs testtools, and ends the process where a test, or its end, takes too long.

Each test is named as it begins, so that the last one named is the one that stood still.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any

import testtools
from testtools import run

#: Of a test: several times of what its patience comes to on a busy machine.
_TEST_SECONDS = 400.0
#: Tests may capture :data:`sys.stderr`.
_ERRORS = 2


def _limit() -> None:
    """Begin to count anew; where time is over, say where all threads are, and end."""
    faulthandler.dump_traceback_later(_TEST_SECONDS, exit=True, file=_ERRORS)


def main() -> None:
    """Run what the command line names."""
    run_test = testtools.TestCase.run

    def limited(case: Any, result: Any = None) -> Any:
        os.write(_ERRORS, f"begins: {case.id()}\n".encode())
        _limit()
        try:
            return run_test(case, result)
        finally:
            # Threads that do not end keep a process from its end, too.
            _limit()

    testtools.TestCase.run = limited
    run.main(sys.argv, sys.stdout)


if __name__ == "__main__":
    main()
