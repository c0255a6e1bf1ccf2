# SPDX-License-Identifier: Apache-2.0
"""What the explain command reads, asks and prints."""

import argparse
import io

import rich.console
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.commands import explain_command
from nova_nodb_scheduler.cmd.overview import process_reports
from nova_nodb_scheduler.wire import explanations
from tests.unit.cmd import samples

BOUND_SECONDS = 30.0
EXPECTED = (TimeoutError, errors.NodbError)


def decision(at, host=None, refused=(), counts=()):
    return explanations.PastDecision(
        at=at,
        seconds=0.1,
        outcome="selected" if host else "no_valid_host",
        candidates="memory",
        servers=1,
        counts=[explanations.StepCount(name=n, before=b, after=a) for n, b, a in counts],
        placed=[]
        if host is None
        else [
            explanations.PlacedServer(
                server="s1", uuid="u", host=host, node=f"{host}.example", score=1.5
            )
        ],
        refused=[
            explanations.RefusedHost(server="s1", uuid="u", host=name, reason=reason)
            for name, reason in refused
        ],
    )


def answer(host, pid, *decisions):
    return explanations.PastDecisions(
        host=host, pid=pid, remembered=4, since=1.0, decisions=list(decisions)
    )


class PastTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.backend = self.useFixture(samples.BackendFixture())

    def gather(self, ask):
        read = process_reports.read_backend(self.backend.client())
        return explain_command.gather(read, ask, EXPECTED, BOUND_SECONDS)

    def test_every_worker_that_lives_is_asked_and_decisions_come_by_time(self):
        self.backend.scheduler("sched1", 7)
        self.backend.scheduler("sched1", 8)
        self.backend.scheduler("sched2", 9)
        self.backend.scheduler("gone", 1, age_seconds=100.0)
        turns = {"sched1": [answer("sched1", 8, decision(5.0)), answer("sched1", 7)]}
        turns["sched2"] = [answer("sched2", 9, decision(3.0, "h1"))]

        found = self.gather(lambda host: turns[host].pop())

        self.assertEqual(
            [("sched2", 9, 3.0), ("sched1", 8, 5.0)],
            [(each["host"], each["pid"], each["at"]) for each in found["decisions"]],
        )
        self.assertEqual([7, 8, 9], [each["pid"] for each in found["workers"]])
        self.assertEqual({}, found["silent"])

    def test_a_scheduler_that_does_not_answer_is_named_and_the_others_count(self):
        self.backend.scheduler("sched1", 7)
        self.backend.scheduler("old", 8)

        def ask(host):
            if host == "old":
                raise TimeoutError("nobody")
            return answer(host, 7, decision(1.0, "h1"))

        found = self.gather(ask)

        self.assertEqual({"old": "TimeoutError: nobody"}, found["silent"])
        self.assertEqual(1, len(found["decisions"]))

    def test_without_a_back_end_whoever_is_on_the_bus_is_asked(self):
        asked = []

        def ask(host):
            asked.append(host)
            return answer("sched1", 7, decision(1.0, "h1"))

        found = explain_command.gather(
            process_reports.Backend("memory", error="it is down"), ask, EXPECTED, BOUND_SECONDS
        )

        self.assertEqual([None], list(set(asked)))
        self.assertEqual(1, len(found["decisions"]))
        self.assertIn("it is down", found["silent"]["other schedulers"])


class ArgumentsTest(testtools.TestCase):
    def test_pairs_are_read_and_a_name_may_come_again(self):
        self.assertEqual(
            {"a": ["1", "2"], "b": ["x=y"], "c": [""]},
            explain_command.pairs("--hint", ["a=1", "b=x=y", "a=2", "c="]),
        )

    def test_what_is_no_pair_is_named(self):
        for text in ("a", "=1", ""):
            error = self.assertRaises(
                errors.ConfigurationError, explain_command.pairs, "--hint", [text]
            )
            self.assertEqual(("--hint", text), (error.option, error.value))

    def test_wrong_arguments_are_refused_before_anything_is_read(self):
        parser = self.command().get_parser("explain")
        for arguments in (
            [],
            ["--server", "s", "--flavor", "f"],
            ["--flavor", "f", "--count", "0"],
            ["--flavor", "f", "--limit", "1001"],
        ):
            self.assertRaises(SystemExit, parser.parse_args, arguments)

    def test_help_says_what_it_costs_and_that_nothing_is_allocated(self):
        text = " ".join(self.command().get_parser("explain").format_help().split())

        self.assertIn("It costs one scheduler", " ".join(explain_command.Explain.__doc__.split()))
        self.assertIn("Nothing is allocated", " ".join(explain_command.Explain.__doc__.split()))
        self.assertIn("--image-property K=V", text)

    @staticmethod
    def command():
        return explain_command.Explain(application.ManageApp(), argparse.Namespace(), "explain")


def explanation(**values):
    return explanations.Explanation(
        **{
            "scheduler": "sched1",
            "pid": 7,
            "at": 1.0,
            "seconds": 0.01,
            "servers": 1,
            "candidates": "memory",
            "reason": "",
            "counts": [explanations.StepCount(name="placement", before=9, after=2)],
            "passed": 2,
            "hosts": [TablesTest.host("h1", 0.75, 2.0), TablesTest.host("h2", None, 2.0)],
            "placed": [
                explanations.PlacedServer(server="s", uuid="u", host="h1", node="n", score=0.75)
            ],
            **values,
        }
    )


class TablesTest(testtools.TestCase):
    def show(self, server, past, now, wide=True):
        command = ArgumentsTest.command()
        command.wide = wide
        command.console = rich.console.Console(file=io.StringIO(), width=160)
        explain_command.show_explanation(command, server, past, now)
        return " ".join(command.console.file.getvalue().split())

    @staticmethod
    def host(name, ram, disk):
        return explanations.ExplainedHost(
            uuid=f"{name}-uuid",
            cell="c",
            host=name,
            node=f"{name}.example",
            score=ram,
            shares=[
                explanations.WeigherShare(
                    weigher=weigher, raw=8.0, normalised=share, multiplier=1.0, share=share
                )
                for weigher, share in (("RAMWeigher", ram), ("DiskWeigher", disk))
            ],
        )

    def test_steps_hosts_and_shares_are_shown(self):
        text = self.show(None, None, explanation())

        for part in ("placement", "7", "h1.example", "0.75", "RAM", "nothing was allocated"):
            self.assertIn(part, text)
        self.assertIn("The same for all of them: DiskWeigher.", text)

    def test_a_reason_of_memory_and_one_of_nova_read_differently(self):
        nobody = {"placed": [], "hosts": [], "counts": [], "passed": 0}
        asked = explanation(candidates="placement", reason="mirror too old", **nobody)
        refused = explanation(reason="no such zone", **nobody)

        self.assertIn(
            "Placement would be asked, as in stock Nova: mirror too old.",
            self.show(None, None, asked),
        )
        self.assertIn("No valid host. no such zone", self.show(None, None, refused))

    def test_the_past_tells_refusals_and_the_step_that_left_nobody(self):
        past = {
            "decisions": [
                {
                    "host": "sched1",
                    "pid": 7,
                    "at": 0.0,
                    "seconds": 0.25,
                    "outcome": "no_valid_host",
                    "candidates": "memory",
                    "counts": [{"name": "ComputeFilter", "before": 4, "after": 0}],
                    "placed": [],
                    "refused": [{"host": "h3", "reason": "full of VCPU"}],
                }
            ],
            "workers": [{"host": "sched1", "pid": 7, "remembered": 4, "since": 0.0}],
            "silent": {"sched2": "MessagingTimeout"},
        }

        text = self.show("s1", past, None)

        for part in (
            "1970-01-01 00:00:00",
            "no valid host",
            "h3: full of VCPU",
            "ComputeFilter",
            "remembers 4 requests since",
            "No answer from sched2",
            "has no request of server s1",
        ):
            self.assertIn(part, text)
