# SPDX-License-Identifier: Apache-2.0
"""Count what ran in subunit streams: `passed failed skipped` on stdout, failed ids on stderr.

A test that failed since it ran out of patience, and for nothing else, is named
`FAILED (out of patience)`: the only failure that says nothing of a state.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

import subunit
import testtools

#: `package.module.Error: what`, at the left margin. A line of a message may look like
#: one, too: such a failure is then not excused.
_ENDS_A_TRACEBACK = re.compile(r"[A-Za-z_][\w.]*(: |:?$)")

#: The type of that failure; the runner itself imports nothing of the package.
OUT_OF_PATIENCE = "nova_nodb_scheduler.testing.patience.OutOfPatience"

FINAL = frozenset({"success", "xfail", "fail", "uxsuccess", "skip"})


def ends(lines: Iterable[str]) -> list[str]:
    """Return those lines of tracebacks that name an exception, each cause before its effect."""
    return [line for line in lines if _ENDS_A_TRACEBACK.match(line)]


class LastStatus(testtools.StreamResult):
    """Remember each test's last status; one that never ended counts as failed."""

    def __init__(self) -> None:
        super().__init__()
        self.status_by_test: dict[str, str] = {}
        self._details: dict[str, bytes] = {}

    def status(
        self,
        test_id: str | None = None,
        test_status: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if test_id is not None and (kwargs.get("file_name") or "").startswith("traceback"):
            self._details[test_id] = self._details.get(test_id, b"") + kwargs["file_bytes"]
        if test_id is None or test_status in (None, "exists"):
            return
        if test_status in FINAL or test_id not in self.status_by_test:
            self.status_by_test[test_id] = str(test_status)

    def with_status(self, *statuses: str) -> list[str]:
        """The sorted ids of the tests that ended in one of these."""
        return sorted(test for test, status in self.status_by_test.items() if status in statuses)

    def ran_out_of_patience(self, test: str) -> bool:
        """Tell whether that, and nothing besides, is why a test failed.

        A test may fail more than once (in its clean-up, by another's exception):
        each must be of that type.
        """
        told = ends(self._details.get(test, b"").decode(errors="replace").splitlines())
        return bool(told) and all(line.startswith(OUT_OF_PATIENCE) for line in told)


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
        why = " (out of patience)" if result.ran_out_of_patience(test) else ""
        print(f"  FAILED{why}", test, file=sys.stderr)
    for test in unended:
        print("  FAILED (did not end)", test, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
