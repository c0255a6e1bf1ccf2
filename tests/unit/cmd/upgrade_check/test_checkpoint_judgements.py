# SPDX-License-Identifier: Apache-2.0
"""What the upgrade check says of the directory of checkpoints, and of those who write there."""

import os
import pathlib

import fixtures
import testtools
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.overview import deployment, process_reports
from nova_nodb_scheduler.cmd.upgrade_check import checkpoint_judgements, judgements
from tests.unit.cmd import samples

Code = upgradecheck.Code


class DirectoryTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "checkpoint")

    def judged(self, directory=None):
        path = self.directory if directory is None else directory
        return judgements.result(checkpoint_judgements.judge_directory(str(path)))

    def test_without_a_directory_there_is_nothing_to_mend(self):
        for unset in (None, ""):
            result = judgements.result(checkpoint_judgements.judge_directory(unset))
            self.assertEqual(Code.SUCCESS, result.code)

    def test_one_of_its_owner_alone_is_as_it_should_be(self):
        self.directory.mkdir(mode=0o700)
        self.assertEqual(Code.SUCCESS, self.judged().code)

    def test_one_that_is_still_to_be_made_is_too(self):
        self.assertEqual(Code.SUCCESS, self.judged().code)

    def test_others_who_may_look_into_it_or_write_there_are_told_with_the_remedy(self):
        self.directory.mkdir()
        for mode, text in (
            (0o750, "look into"),
            (0o705, "look into"),
            (0o770, "write to"),
            (0o1777, "write to"),
        ):
            self.directory.chmod(mode)
            result = self.judged()
            self.assertEqual(Code.WARNING, result.code, oct(mode))
            self.assertIn(text, result.details)
            self.assertIn(f"chmod 0700 {self.directory}", result.details)

    def test_one_that_cannot_be_written_is_told(self):
        self.directory.mkdir(mode=0o500)
        if not os.geteuid():
            self.skipTest("root may write anywhere")
        self.assertEqual(Code.WARNING, self.judged().code)

    def test_what_is_no_directory_is_told(self):
        self.directory.write_text("a file")
        result = self.judged()
        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("no directory", result.details)
        self.assertEqual(Code.WARNING, self.judged(self.directory / "below").code)

    def test_one_of_another_user_is_told_to_who_is_not_root(self):
        if os.geteuid():
            self.skipTest("only root can give a directory away")
        self.directory.mkdir(mode=0o700)
        os.chown(self.directory, 65534, 65534)
        self.assertEqual(Code.SUCCESS, self.judged().code)
        self.useFixture(fixtures.MockPatch("os.geteuid", lambda: 1000))
        result = self.judged()
        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("user 65534", result.details)


class WritersTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())

    def judged(self):
        found = deployment.gather(
            process_reports.read_backend(self.cloud.client()), None, (), 15.0, 300.0
        )
        return list(checkpoint_judgements.judge_writers(found))

    def test_a_scheduler_without_one_or_whose_last_attempt_went_well_is_none_to_tell(self):
        self.cloud.scheduler("sched1", 11)
        for number, outcome in enumerate(("written", "another writes", "not ready", "")):
            self.cloud.scheduler("sched2", number, checkpoint={"outcome": outcome, "detail": ""})
        self.assertEqual([], self.judged())

    def test_one_that_could_not_write_is_told_with_its_reason(self):
        failed = {"outcome": "failed", "detail": "No space left on device"}
        self.cloud.scheduler("sched1", 11, checkpoint=failed)
        self.cloud.scheduler("gone", 12, age_seconds=60.0, checkpoint=failed)
        [judged] = self.judged()
        self.assertEqual(Code.WARNING, judged.code)
        self.assertIn("sched1 (process 11)", judged.text)
        self.assertIn("No space left on device", judged.text)
