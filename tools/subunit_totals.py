# SPDX-License-Identifier: Apache-2.0
"""Count what ran in subunit streams: `passed failed skipped` on stdout, failed ids on stderr."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import subunit
import testtools

FINAL = frozenset({"success", "xfail", "fail", "uxsuccess", "skip"})


class LastStatus(testtools.StreamResult):
    """Remember each test's last status; one that never ended counts as failed."""

    def __init__(self) -> None:
        super().__init__()
        self.status_by_test: dict[str, str] = {}

    def status(
        self,
        test_id: str | None = None,
        test_status: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if test_id is None or test_status in (None, "exists"):
            return
        if test_status in FINAL or test_id not in self.status_by_test:
            self.status_by_test[test_id] = str(test_status)

    def with_status(self, *statuses: str) -> list[str]:
        """The sorted ids of the tests that ended in one of these."""
        return sorted(test for test, status in self.status_by_test.items() if status in statuses)


def main() -> int:
    """Read every named stream; a file that is not there counts nothing."""
    result = LastStatus()
    result.startTestRun()
    for name in sys.argv[1:]:
        if pathlib.Path(name).is_file():
            with open(name, "rb") as stream:
                subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    failed = result.with_status("fail", "uxsuccess")
    unended = result.with_status("inprogress")
    passed = result.with_status("success", "xfail")
    print(len(passed), len(failed) + len(unended), len(result.with_status("skip")))
    for test in failed:
        print("  FAILED", test, file=sys.stderr)
    for test in unended:
        print("  FAILED (did not end)", test, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
