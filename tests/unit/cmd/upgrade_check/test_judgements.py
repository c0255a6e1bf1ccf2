# SPDX-License-Identifier: Apache-2.0
"""What the upgrade check says of services, reporters, feeds and cells."""

import testtools
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.overview import deployment, process_reports
from nova_nodb_scheduler.cmd.upgrade_check import judgements
from tests.unit.cmd import samples

Code = upgradecheck.Code
Service = judgements.NovaService


class ChecksTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())
        self.cloud.cell("cell1")
        self.cloud.reporter("conductor", "cond1", "cell1")
        self.cloud.scheduler("sched1", 11)
        self.status = samples.status("sched1", 11)

    def found(self):
        return deployment.gather(
            process_reports.read_backend(self.cloud.client()),
            lambda host: self.status,
            (),
            15.0,
            300.0,
        )

    def services(self, *services, expects_schedulers=True):
        findings = judgements.judge_services(
            services, self.found(), expects_schedulers=expects_schedulers
        )
        return judgements.result(findings)

    def cells(self, mapped=("cell1",), services=(), nodes=None):
        return judgements.result(
            judgements.judge_cells(mapped, services, self.found(), nodes or {})
        )

    # -- heartbeats --------------------------------------------------------------

    def heartbeats(self, *services):
        return judgements.result(judgements.judge_heartbeats(services, self.found()))

    def configure(self, mode, role="conductor", cell="cell1", guards=None, host="cond1"):
        self.cloud.reporter(role, host, cell, guards=guards, service_heartbeats=mode)

    def record(self, mode, cell="cell1"):
        self.cloud.write("heartbeat_modes", cell, {"mode": mode, "since": 0.0})

    def test_heartbeats_in_rows_are_as_ever(self):
        for mode in (None, "database"):
            if mode:
                self.configure(mode)
            result = self.heartbeats()
            self.assertEqual(Code.SUCCESS, result.code)
            self.assertEqual(
                "Heartbeats of compute services are written to their rows.", result.details
            )

    def test_stored_heartbeats_that_everybody_knows_are_well(self):
        self.record("store")
        self.configure("store")
        self.configure("store", "api", "*", (), "api1")
        result = self.heartbeats()
        self.assertEqual(
            (Code.SUCCESS, "Heartbeats of the compute services of cell cell1: store."),
            (result.code, result.details),
        )

    def test_a_conductor_that_waits_is_told(self):
        self.record("both")
        self.configure("store")
        result = self.heartbeats()
        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("service_heartbeats = store, and cell cell1 is in mode both", result.details)

    def test_an_api_that_was_not_told_and_one_of_an_older_release_are_named(self):
        self.record("store")
        self.configure("store")
        for mode, words in (("database", "set it to store there"), (None, "upgrade and restart")):
            more = {} if mode is None else {"service_heartbeats": mode}
            self.cloud.reporter("api", "api1", "*", guards=(), **more)
            result = self.heartbeats()
            self.assertEqual(Code.WARNING, result.code)
            self.assertIn("The api on api1", result.details)
            self.assertIn(words, result.details)

    def test_a_conductor_without_the_plugin_beside_stored_ones_is_a_failure(self):
        self.record("store")
        self.configure("store")
        result = self.heartbeats(
            Service("nova-conductor", "cond1", "cell1", True),
            Service("nova-conductor", "cond2", "cell1", True),
            Service("nova-conductor", "cond3", "cell1", False),
        )
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("nova-conductor on cond2 runs without the plugin", result.details)

    def test_an_api_with_the_plugin_proves_no_conductor_beside_it(self):
        self.record("store")
        self.configure("store")
        self.configure("store", "api", "*", (), "both1")
        result = self.heartbeats(Service("nova-conductor", "both1", "cell1", True))
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("nova-conductor on both1 runs without the plugin", result.details)

    # -- compute nodes that are records ------------------------------------------

    def nodes(self, *services, mode=None, expects_schedulers=True, **configured):
        if mode is not None:
            self.cloud.write("node_cells", "cell1", {"mode": mode, "next_id": 9}, "nova")
        own = {"compute_nodes": configured.get("own", mode)} if mode is not None else {}
        self.cloud.reporter("conductor", "cond1", "cell1", **own)
        self.cloud.scheduler("sched1", 11, **own)
        return judgements.result(
            judgements.judge_node_services(
                services, self.found(), expects_schedulers=expects_schedulers
            )
        )

    def strays(self):
        return (
            Service("nova-conductor", "cond1", "cell1", True),
            Service("nova-conductor", "cond2", "cell1", True),
            Service("nova-conductor", "gone", "cell1", False),
            Service("nova-conductor", "cond3", "cell2", True),
            Service("nova-scheduler", "sched1", "cell0", True),
            Service("nova-scheduler", "sched2", "cell0", True),
            Service("nova-compute", "host1", "cell1", True),
            Service("nova-osapi_compute", "api1", "cell0", False),
        )

    def test_beside_tables_that_count_no_service_is_stray(self):
        for mode in (None, "mirror"):
            self.assertEqual((Code.SUCCESS, None), _pair(self.nodes(*self.strays(), mode=mode)))

    def test_services_without_the_plugin_beside_records_are_failures_of_their_mode(self):
        for mode, words in (
            ("store", "that it writes are lost"),
            ("retired", "compute node fails"),
        ):
            result = self.nodes(*self.strays(), mode=mode)
            self.assertEqual(Code.FAILURE, result.code)
            self.assertIn("nova-conductor on cond2 runs without the plugin beside", result.details)
            self.assertIn(words, result.details)
            self.assertIn("nova-scheduler on sched2 runs without the plugin, and", result.details)
            for each in ("cond1", "cond3", "gone", "sched1", "host1", "api1"):
                self.assertNotIn(each, result.details)

    def test_an_api_with_the_plugin_proves_no_conductor_beside_records(self):
        self.cloud.reporter("api", "both1", "*", guards=(), compute_nodes="retired")
        result = self.nodes(Service("nova-conductor", "both1", "cell1", True), mode="retired")
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("nova-conductor on both1 runs without the plugin beside", result.details)

    def test_where_novas_own_scheduler_is_configured_none_is_missed(self):
        result = self.nodes(*self.strays()[4:], mode="retired", expects_schedulers=False)
        self.assertEqual((Code.SUCCESS, None), _pair(result))

    def test_a_process_that_is_configured_for_another_mode_is_a_failure(self):
        result = self.nodes(mode="retired", own="store")
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("The conductor on cond1", result.details)
        self.assertIn("The scheduler on sched1", result.details)
        self.assertIn("compute_nodes = store, and cell cell1 is in mode retired", result.details)

    # -- services ----------------------------------------------------------------

    def test_services_that_say_they_live_are_counted(self):
        result = self.services(
            Service("nova-conductor", "cond1", "cell1", True),
            Service("nova-scheduler", "sched1", "cell0", True),
        )

        self.assertEqual(
            (Code.SUCCESS, "2 services run the plugin."), (result.code, result.details)
        )

    def test_a_conductor_without_the_plugin_is_a_failure_by_name(self):
        result = self.services(
            Service("nova-conductor", "cond1", "cell1", True),
            Service("nova-conductor", "cond2", "cell1", True),
        )

        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn(
            "nova-conductor on cond2 (cell cell1) runs without the plugin", result.details
        )
        self.assertNotIn("cond1", result.details)

    def test_a_conductor_whose_reporter_is_silent_counts_as_without(self):
        self.cloud.reporter("conductor", "cond1", "cell1", age_seconds=60)

        result = self.services(Service("nova-conductor", "cond1", "cell1", True))

        self.assertEqual(Code.FAILURE, result.code)

    def test_a_service_that_is_down_is_not_missed(self):
        result = self.services(
            Service("nova-conductor", "cond1", "cell1", True),
            Service("nova-conductor", "gone", "cell1", False),
            Service("nova-scheduler", "gone", "cell0", False),
        )

        self.assertEqual(Code.SUCCESS, result.code)

    def test_a_stock_scheduler_is_a_warning_by_name(self):
        conductor = Service("nova-conductor", "cond1", "cell1", True)
        stock = Service("nova-scheduler", "sched2", "cell0", True)

        result = self.services(conductor, stock)

        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("nova-scheduler on sched2", result.details)
        # With scheduler_driver at its default that is what was asked for.
        self.assertEqual(
            Code.SUCCESS, self.services(conductor, stock, expects_schedulers=False).code
        )

    def test_of_an_api_that_wrote_nothing_is_said_that_nothing_is_known(self):
        conductor = Service("nova-conductor", "cond1", "cell1", True)
        api = Service("nova-osapi_compute", "api1", "cell0", False)

        result = self.services(conductor, api)
        self.assertEqual(Code.SUCCESS, result.code)
        self.assertIn("Nothing is known of nova-osapi_compute on api1", result.details)

        self.cloud.reporter("api", "api1", "*", guards=())
        self.assertEqual("2 services run the plugin.", self.services(conductor, api).details)

    def test_no_conductor_up_is_a_warning(self):
        self.assertEqual(Code.WARNING, self.services().code)

    # -- reporters and feeds -----------------------------------------------------------

    def test_living_reporters_and_feeds_are_well(self):
        found = self.found()

        self.assertEqual([], list(judgements.judge_reporters(found)))
        self.assertEqual([], list(judgements.judge_feeds(found, expects_schedulers=True)))

    def test_schedulers_that_do_not_all_claim_are_a_warning_by_name(self):
        self.cloud.scheduler("sched1", 11, claiming=True)
        self.assertEqual([], list(judgements.judge_claims(self.found())))

        self.cloud.scheduler("sched2", 22, claiming=False)

        [finding] = judgements.judge_claims(self.found())
        self.assertIs(Code.WARNING, finding.code)
        self.assertIn("sched2 (process 22) do not", finding.text)

    def test_a_reporter_that_fails_to_publish_is_a_warning(self):
        self.cloud.reporter(
            "conductor", "cond1", "cell1", behind_seconds={"cell1": 3.0}, failed_flushes=4
        )

        [finding] = judgements.judge_reporters(self.found())

        self.assertEqual(Code.WARNING, finding.code)
        self.assertIn("3.0 s behind", finding.text)

    def test_silent_reporters_alone_are_a_failure(self):
        self.cloud.reporter("conductor", "cond1", "cell1", age_seconds=60)

        findings = judgements.judge_reporters(self.found())

        self.assertEqual([Code.WARNING, Code.FAILURE], [finding.code for finding in findings])

    def test_a_dead_feed_and_unreadable_records_are_failures(self):
        self.status = samples.status("sched1", 11, state="dead", quarantined={"services": 1})

        findings = judgements.judge_feeds(self.found(), expects_schedulers=True)

        self.assertEqual([Code.FAILURE] * 2, [finding.code for finding in findings])

    def test_a_silent_scheduler_beside_others_is_a_warning_by_name(self):
        self.cloud.scheduler("sched2", 22, age_seconds=100.0)

        [finding] = judgements.judge_feeds(self.found(), expects_schedulers=True)

        self.assertEqual(Code.WARNING, finding.code)
        self.assertIn("sched2 (process 22) is silent for 100 s", finding.text)

    def test_no_scheduler_is_a_failure_only_where_one_is_expected(self):
        self.cloud = self.useFixture(samples.BackendFixture())

        found = self.found()

        self.assertEqual([], list(judgements.judge_feeds(found, expects_schedulers=False)))
        [finding] = judgements.judge_feeds(found, expects_schedulers=True)
        self.assertEqual(Code.FAILURE, finding.code)

    # -- cells -----------------------------------------------------------------------

    def test_cells_that_agree_are_well(self):
        self.assertEqual(
            Code.SUCCESS,
            self.cells(
                services=[Service("nova-conductor", "cond1", "cell1", True)], nodes={"cell1": 3}
            ).code,
        )

    def test_a_cell_without_a_conductor_that_reports_is_a_warning(self):
        self.cloud.cell("cell2")

        result = self.cells(mapped=["cell1", "cell2"])

        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("No conductor reports for cell cell2", result.details)

    def test_a_cell_that_schedulers_do_not_serve_from_memory_is_a_warning(self):
        self.status = samples.status("sched1", 11, missing={"cell1": "reporter behind"})

        result = self.cells(
            services=[Service("nova-conductor", "cond1", "cell1", True)], nodes={"cell1": 3}
        )

        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("reporter behind", result.details)

    def test_a_cell_that_was_never_imported_is_a_warning(self):
        self.cloud.cell("cell1", epoch="an older one")

        result = self.cells()

        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("cell1 was never imported", result.details)

    def test_a_conductor_with_a_wrong_cell_uuid_is_a_failure(self):
        self.cloud.reporter("conductor", "cond2", "typo")

        result = self.cells()

        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("The conductor on cond2 reports for typo", result.details)

    def test_a_conductor_that_reports_for_another_cell_than_its_own_is_a_failure(self):
        self.cloud.cell("cell2")
        self.cloud.reporter("conductor", "cond2", "cell2")

        result = self.cells(
            mapped=["cell1", "cell2"],
            services=[
                Service("nova-conductor", "cond1", "cell1", True),
                Service("nova-conductor", "cond2", "cell1", True),
            ],
        )

        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn(
            "cond2 reports for cell cell2, and is registered in cell cell1", result.details
        )

    def test_records_of_an_unmapped_cell_are_a_warning(self):
        result = self.cells(nodes={"cell1": 1, "gone": 2})

        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("2 compute nodes of cell gone", result.details)

    # -- the mirror of Placement ---------------------------------------------------------

    def mirror(self, wanted=True):
        return judgements.result(judgements.judge_mirror(self.found(), 300.0, wanted=wanted))

    def test_a_mirror_tells_what_it_does_not_cover(self):
        self.cloud.mirror()

        result = self.mirror()

        self.assertEqual(Code.SUCCESS, result.code)
        self.assertIn("7 providers", result.details)
        self.assertIn("allocation_conflict_retry_count", result.details)

    def test_no_mirror_or_an_old_one_is_a_warning(self):
        self.assertEqual(Code.WARNING, self.mirror().code)
        self.cloud.mirror(age_seconds=301)
        self.assertEqual(Code.WARNING, self.mirror().code)

    def test_a_mirror_of_another_epoch_does_not_count(self):
        self.cloud.mirror(epoch="former")
        self.assertEqual(Code.WARNING, self.mirror().code)

    def test_providers_that_cannot_be_mirrored_are_a_warning(self):
        self.cloud.mirror(broken={"a child without a parent": 2})

        result = self.mirror()

        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("2 provider trees", result.details)

    def test_without_candidates_from_memory_no_mirror_is_missed(self):
        self.assertEqual(Code.SUCCESS, self.mirror(wanted=False).code)

    # -- releases ----------------------------------------------------------------------

    def test_several_releases_of_the_plugin_are_a_warning(self):
        self.assertEqual([], list(judgements.judge_versions(self.found())))

        self.cloud.reporter("conductor", "cond2", "cell1", plugin="1.1")

        [finding] = judgements.judge_versions(self.found())
        self.assertIn("1.0, 1.1", finding.text)


def _pair(result):
    return result.code, result.details
