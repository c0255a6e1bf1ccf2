# SPDX-License-Identifier: Apache-2.0
"""What the upgrade check says of the number of scheduler workers."""

import testtools
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.overview import deployment, process_reports
from nova_nodb_scheduler.cmd.upgrade_check import worker_judgements
from tests.unit.cmd import samples

Code = upgradecheck.Code
MIB = 1024 * 1024


class WorkersTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())

    def judged(self, configured, cpus=16):
        found = deployment.gather(
            process_reports.read_backend(self.cloud.client()), None, (), 15.0, 300.0
        )
        return worker_judgements.judge_workers(configured, cpus, found)

    def test_a_number_that_somebody_chose_is_theirs(self):
        for number in (1, 2, 64):
            judged = self.judged(number)
            self.assertEqual(Code.SUCCESS, judged.code)
            self.assertIn(f"[scheduler] workers is {number}", judged.text)

    def test_nova_s_default_is_a_warning_that_names_memory_and_remedy(self):
        self.cloud.scheduler("sched1", 11, memory_bytes=300 * MIB)
        self.cloud.scheduler("sched1", 12, memory_bytes=800 * MIB)
        self.cloud.scheduler("gone", 13, age_seconds=60.0, memory_bytes=9000 * MIB)
        for unset in (None, 0):
            judged = self.judged(unset)
            self.assertEqual(Code.WARNING, judged.code)
            self.assertIn("16 on this machine", judged.text)
            self.assertIn("has 800 MiB, 16 of its size 12800 MiB", judged.text)
            self.assertIn("Set it to 1", judged.text)
            self.assertIn("[DEFAULT] executor_thread_pool_size", judged.text)

    def test_one_cpu_forks_one_worker(self):
        self.assertEqual(Code.SUCCESS, self.judged(None, cpus=1).code)

    def test_memory_that_nobody_tells_is_said_to_be_unknown(self):
        self.cloud.scheduler("sched1", 11)
        for judged in (self.judged(None), worker_judgements.judge_workers(None, 16, None)):
            self.assertEqual(Code.WARNING, judged.code)
            self.assertIn("no scheduler that runs the plugin tells", judged.text)
            self.assertIn("some 250 MiB with 10,000 hosts", judged.text)
