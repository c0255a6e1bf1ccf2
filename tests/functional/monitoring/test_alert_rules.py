# SPDX-License-Identifier: Apache-2.0
"""Each alert fires by its own figures and by no others, as promtool's own tests have it."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import unittest
from typing import Any

import yaml

from nova_nodb_scheduler.testing import server_processes
from tests.functional.monitoring import prometheus_server

WORKER = 'role="scheduler",host="s1",worker="0"'
REPORTER = 'role="conductor",host="k1",worker="0",cell="c1"'
BOUNDS = (
    f'nodb_bound_seconds{{bound="reporter_bound",{WORKER}}}',
    f'nodb_bound_seconds{{bound="mirror_bound",{WORKER}}}',
    f'nodb_bound_seconds{{bound="claim_lease",{WORKER}}}',
)
#: A cloud in which all is well: series and, from minute to minute, their values.
HEALTHY = {
    'up{job="nova-nodb",instance="a"}': "1+0x100",
    f"nodb_ready{{{WORKER}}}": "1+0x100",
    f"nodb_worker_answers{{{WORKER}}}": "1+0x100",
    f'nodb_build_info{{plugin="1",nova="34",{WORKER}}}': "1+0x2000",
    f'nodb_feed_state{{state="following",{WORKER}}}': "1+0x100",
    f'nodb_feed_state{{state="dead",{WORKER}}}': "0+0x100",
    f'nodb_feed_lag_seconds_bucket{{le="0.5",{WORKER}}}': "0+30x100",
    f'nodb_feed_lag_seconds_bucket{{le="5",{WORKER}}}': "0+30x100",
    f'nodb_feed_lag_seconds_bucket{{le="+Inf",{WORKER}}}': "0+30x100",
    f'nodb_resyncs_total{{reason="epoch changed",{WORKER}}}': "1+0x100",
    f"nodb_replicator_failures_total{{{WORKER}}}": "0+0x100",
    f'nodb_anti_entropy_findings_total{{kind="stale",{WORKER}}}': "0+0x100",
    f"nodb_quarantined_records{{{WORKER}}}": "0+0x100",
    f'nodb_cell_proved{{cell="c1",{WORKER}}}': "1+0x100",
    f'nodb_fallbacks_total{{cell="c1",reason="feed not proved",{WORKER}}}': "5+0x100",
    f'nodb_reporter_silent_seconds{{reporter_role="conductor",reporter_host="k1",cell="c1",'
    f"{WORKER}}}": "2+0x100",
    f"nodb_reporter_publishing{{{REPORTER}}}": "1+0x100",
    f"nodb_reporter_running{{{REPORTER}}}": "1+0x100",
    f"nodb_reporter_dirty_oldest_seconds{{{REPORTER}}}": "0.1+0x100",
    f'nodb_records_refused_total{{namespace="instances",driver="redis",{REPORTER}}}': "3+0x100",
    f'nodb_schedule_seconds_bucket{{outcome="selected",le="0.5",{WORKER}}}': "0+600x100",
    f'nodb_schedule_seconds_bucket{{outcome="selected",le="5",{WORKER}}}': "0+600x100",
    f'nodb_schedule_seconds_bucket{{outcome="selected",le="+Inf",{WORKER}}}': "0+600x100",
    f'nodb_schedule_seconds_count{{outcome="selected",{WORKER}}}': "0+600x100",
    f'nodb_schedule_seconds_count{{outcome="error",{WORKER}}}': "0+0x100",
    f'nodb_candidates_total{{source="memory",reason="",{WORKER}}}': "0+600x100",
    f'nodb_candidates_total{{source="placement",reason="more than one group",{WORKER}}}': "0+6x100",
    f"nodb_mirror_age_seconds{{{WORKER}}}": "20+0x100",
    f"nodb_mirror_keeping{{{WORKER}}}": "1+0x100",
    f"nodb_mirror_failures_total{{{WORKER}}}": "0+0x100",
    f"nodb_claim_writes_lost_total{{{WORKER}}}": "0+6x100",
    f"nodb_claims_taken_total{{{WORKER}}}": "0+600x100",
    f'nodb_claims_oldest_seconds{{state="pending",{WORKER}}}': "1+0x100",
    f'nodb_allocations_verified_total{{result="withdrawn",{WORKER}}}': "0+0x100",
    f'nodb_allocations_verified_total{{result="stands",{WORKER}}}': "0+600x100",
    f'nodb_orphan_allocations{{kind="absent",{WORKER}}}': "0+0x100",
    f"nodb_queue_running{{{WORKER}}}": "1+0x100",
    BOUNDS[0]: "20+0x100",
    BOUNDS[1]: "90+0x100",
    BOUNDS[2]: "30+0x100",
}

#: What changes of it for each alert to fire; None takes a series away.
FAULTS: dict[str, dict[str, str | None]] = {
    "NodbTargetDown": {'up{job="nova-nodb",instance="a"}': "0+0x100"},
    "NodbNoScheduler": {f"nodb_ready{{{WORKER}}}": None},
    "NodbWorkerSilent": {f"nodb_worker_answers{{{WORKER}}}": "0+0x100"},
    "NodbNotReady": {f"nodb_ready{{{WORKER}}}": "0+0x100"},
    "NodbVersionsDiffer": {'nodb_build_info{plugin="2",nova="34",host="s2"}': "1+0x2000"},
    "NodbFeedDown": {f'nodb_feed_state{{state="following",{WORKER}}}': "0+0x100"},
    "NodbFeedLag": {f'nodb_feed_lag_seconds_bucket{{le="0.5",{WORKER}}}': "0+3x100"},
    "NodbResyncs": {f'nodb_resyncs_total{{reason="epoch changed",{WORKER}}}': "1+1x100"},
    "NodbReplicatorFailures": {f"nodb_replicator_failures_total{{{WORKER}}}": "0+0x40 1+0x60"},
    "NodbMemoryDiffered": {
        f'nodb_anti_entropy_findings_total{{kind="stale",{WORKER}}}': "0+0x40 1+0x60"
    },
    "NodbQuarantine": {f"nodb_quarantined_records{{{WORKER}}}": "1+0x100"},
    "NodbCellUnproved": {f'nodb_cell_proved{{cell="c1",{WORKER}}}': "0+0x100"},
    "NodbFallbacks": {
        f'nodb_fallbacks_total{{cell="c1",reason="feed not proved",{WORKER}}}': "5+1x100"
    },
    "NodbReporterSilent": {
        f'nodb_reporter_silent_seconds{{reporter_role="conductor",reporter_host="k1",cell="c1",'
        f"{WORKER}}}": "21+0x100"
    },
    "NodbReporterCannotPublish": {f"nodb_reporter_publishing{{{REPORTER}}}": "0+0x100"},
    "NodbReporterBehind": {f"nodb_reporter_dirty_oldest_seconds{{{REPORTER}}}": "31+0x100"},
    "NodbRecordsRefused": {
        f'nodb_records_refused_total{{namespace="instances",driver="redis",{REPORTER}}}': "3+1x100"
    },
    "NodbSlowDecisions": {
        f'nodb_schedule_seconds_bucket{{outcome="selected",le="0.5",{WORKER}}}': "0+500x100"
    },
    "NodbScheduleErrors": {f'nodb_schedule_seconds_count{{outcome="error",{WORKER}}}': "0+1x100"},
    "NodbCandidatesOfPlacement": {
        f'nodb_candidates_total{{source="memory",reason="",{WORKER}}}': "0+3x100"
    },
    "NodbMirrorMissing": {f"nodb_mirror_age_seconds{{{WORKER}}}": None},
    "NodbMirrorOld": {f"nodb_mirror_age_seconds{{{WORKER}}}": "91+0x100"},
    "NodbMirrorFailures": {f"nodb_mirror_failures_total{{{WORKER}}}": "0+1x100"},
    "NodbClaimConflicts": {f"nodb_claim_writes_lost_total{{{WORKER}}}": "0+400x100"},
    "NodbClaimsNotSettled": {f'nodb_claims_oldest_seconds{{state="pending",{WORKER}}}': "31+0x100"},
    "NodbAllocationsWithdrawn": {
        f'nodb_allocations_verified_total{{result="withdrawn",{WORKER}}}': "0+0x40 1+0x60"
    },
    "NodbQueueStopped": {f"nodb_queue_running{{{WORKER}}}": "0+0x100"},
    "NodbOrphanAllocations": {f'nodb_orphan_allocations{{kind="absent",{WORKER}}}': "1+0x100"},
}
_FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
#: After every patience but a day's.
_LATE, _DAY_LATE = "45m", "30h"


class AlertRulesTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory(prefix="nodb-rules-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def promtool(self, *arguments: str) -> None:
        program = server_processes.find_program("promtool")
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_rules_and_the_example_configuration_are_valid(self) -> None:
        self.promtool("check", "rules", str(prometheus_server.RULES))
        self.promtool("check", "config", str(prometheus_server.ETC / "prometheus.yaml"))

    def test_every_alert_says_what_happened_what_to_do_and_how_bad_it_is(self) -> None:
        for name, rule in prometheus_server.rules().items():
            self.assertEqual({"summary", "remedy"}, rule["annotations"].keys(), name)
            self.assertIn(rule["labels"]["severity"], ("critical", "warning", "info"), name)

    def test_every_alert_has_a_fault_here(self) -> None:
        self.assertEqual(sorted(prometheus_server.rules()), sorted(FAULTS))

    def test_each_fault_fires_its_alert_alone_and_health_fires_none(self) -> None:
        tests = [self._case("health", {}, [])]
        for name, changes in FAULTS.items():
            tests.append(self._case(name, changes, [name]))
        written = self.directory / "tests.yaml"
        written.write_text(
            yaml.safe_dump(
                {
                    "rule_files": [str(prometheus_server.RULES)],
                    "evaluation_interval": "1m",
                    "tests": tests,
                }
            )
        )
        self.promtool("test", "rules", str(written))

    def test_most_requests_that_ask_placement_for_several_reasons_fire_too(self) -> None:
        """None of the reasons is half of all requests by itself."""
        told = 'nodb_candidates_total{{source="placement",reason="{}",{}}}'
        changes: dict[str, str | None] = {
            f'nodb_candidates_total{{source="memory",reason="",{WORKER}}}': "0+30x100",
            told.format("mirror too old", WORKER): "0+30x100",
            told.format("broken provider", WORKER): "0+30x100",
        }
        case = self._case("several reasons", changes, ["NodbCandidatesOfPlacement"])
        case["promql_expr_test"] = [
            {
                "expr": f'{_FIRING} and on (alertname) ALERTS{{alertname="{name}"}}',
                "eval_time": _LATE,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": count}],
            }
            for name, count in (("NodbCandidatesOfPlacement", 3),)
        ]
        written = self.directory / "tests.yaml"
        written.write_text(
            yaml.safe_dump(
                {
                    "rule_files": [str(prometheus_server.RULES)],
                    "evaluation_interval": "1m",
                    "tests": [case],
                }
            )
        )
        self.promtool("test", "rules", str(written))

    def _case(self, name: str, changes: dict[str, str | None], firing: list[str]) -> Any:
        """Return one of promtool's tests: at first nothing fires that has patience, then does."""
        series = {key: value for key, value in {**HEALTHY, **changes}.items() if value}
        patience = any("for" in prometheus_server.rules()[each] for each in firing)
        expected = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in firing]
        at = _DAY_LATE if name == "NodbVersionsDiffer" else _LATE
        steps = [] if not patience else [{"expr": _FIRING, "eval_time": "0m", "exp_samples": []}]
        if at == _DAY_LATE:
            # All other series have ended by then.
            last = f'{_FIRING} and on (alertname) ALERTS{{alertname="{name}"}}'
        else:
            last = _FIRING
        steps.append({"expr": last, "eval_time": at, "exp_samples": expected})
        return {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": key, "values": value} for key, value in series.items()],
            "promql_expr_test": steps,
        }
