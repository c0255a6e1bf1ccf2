# SPDX-License-Identifier: Apache-2.0
"""The fault suite of engines: it leaves no step out, and what it looks for it finds."""

from __future__ import annotations

import unittest

import sqlalchemy as sa
from stevedore import extension

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.testing import patience
from nova_nodb_scheduler.wire import codec
from tests.engine_faults import (
    child,
    engines,
    fault,
    report,
    runner,
    scheduler_faults,
    steps,
    witnesses,
    world,
)


class TestCoverage(unittest.TestCase):
    def test_every_shared_driver_has_an_engine(self) -> None:
        drivers = set(extension.ExtensionManager(loader.NAMESPACE).names())
        self.assertEqual(drivers - {"memory"}, {each.driver for each in engines.ENGINES})

    def test_every_step_has_its_cases_on_every_engine(self) -> None:
        for kind in engines.ENGINES:
            names = {each.name for each in runner.faults(kind)}
            expected = {("driver", step) for step in kind.steps()}
            expected |= {("claims", step) for step in ledger_claimer.ClaimBatches.STEPS}
            self.assertLess(len(ledger_claimer.ClaimBatches.STEPS), len(expected))
            for layer, step in expected:
                for action in ("kill", "freeze", *(("nap",) if layer == "driver" else ())):
                    self.assertIn(f"{action} at {layer}: {step}", names)

    def test_names_are_unique_and_every_short_one_is_of_some_fault(self) -> None:
        for kind in engines.ENGINES:
            names = [each.name for each in runner.faults(kind)]
            self.assertEqual(len(names), len(set(names)))
            for part in runner.SHORT.get(kind.name, ()):
                self.assertTrue(any(part in name for name in names), part)

    def test_every_engine_with_a_disk_is_filled_and_put_back(self) -> None:
        # A file of SQLite's is on the disk of the schedulers themselves, and Galera's
        # second node would bring back what is put back.
        for kind in set(engines.ENGINES) - {engines.SQLite, engines.Galera}:
            if kind is engines.PostgreSQLSequencer:
                continue
            names = " ".join(each.name for each in runner.faults(kind))
            self.assertIn("full", names, kind.name)
            if kind is not engines.Memcached:
                self.assertRegex(names, "put back|old backup", kind.name)

    def test_provocations_are_of_steps_that_there_are(self) -> None:
        known = {(kind.driver, step) for kind in engines.ENGINES for step in kind.steps()}
        self.assertLessEqual(scheduler_faults.PROVOCATIONS.keys(), known)


class TestSensitivity(unittest.TestCase):
    """What the suite must catch."""

    def world(self, **changes: bool) -> world.World:
        engine = self.enterContext(engines.SQLite())
        made = world.World(engine.site(), **changes)
        self.addCleanup(made.stop)
        made.start()
        return made

    def test_schedulers_without_claims_are_caught(self) -> None:
        made = self.world(claims=False)
        made.work()
        # Which of these comes first, and how often, differs by run.
        for broken in ("of 4 VCPUs were granted", "affinity group"):
            world.wait(
                lambda broken=broken: any(broken in each for each in made.ledger.broken),
                60.0,
                f"nobody was caught: {broken}",
            )
        with self.assertRaisesRegex(world.Broken, "granted"):
            made.check_ledger()

    def test_replicas_that_differ_and_claims_that_are_left_are_caught(self) -> None:
        made = self.world()
        made.work()
        self.assertTrue(made.wait_grants(3, 60.0))
        made.check()
        # What is published meanwhile is in one of the two, and not in the other.
        self.enterContext(made.without_reporter())
        held = made.records()
        patience.wait_until(
            lambda: not made.difference_to(held), 60.0, lambda: made.difference_to(held)
        )
        extra = {**held, ("cells", "extra"): b"{}"}
        self.assertIn("differs in [('cells', 'extra')]", made.difference_to(extra))
        claims = [key for key in held if key[0] == "claims"]
        self.assertNotEqual([], claims)
        state = {"claims": {"nobody's": {"state": "confirmed"}}}
        left = {
            **held,
            claims[0]: codec.encode(state, known_namespaces.CLAIM_RECORDS.schema, record="left"),
        }
        self.assertIn("claims are left on", made.difference_to(left))

    def quiet(self) -> world.World:
        """Return a world that worked for a while and has come to rest, all well."""
        made = self.world()
        made.work()
        patience.wait_until(lambda: len(self.marks(made)) > 2, 60.0, "schedulers leave marks")
        made.check()
        self.enterContext(made.without_reporter())
        return made

    def marks(self, made: world.World) -> list[tuple[str, str]]:
        return [key for key in made.records() if key[1].startswith(witnesses.PREFIX)]

    def execute(self, made: world.World, statement: str, **values: object) -> None:
        engine = sa.create_engine(str(made.site.direct.options["connection"]))
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            self.assertEqual(1, connection.execute(sa.text(statement), values).rowcount)

    def test_an_acknowledged_record_that_is_gone_is_caught(self) -> None:
        made = self.quiet()
        namespace, name = self.marks(made)[0]
        self.execute(
            made,
            "DELETE FROM nodb_record WHERE namespace = :namespace AND record_key = :name",
            namespace=namespace,
            name=name,
        )
        self.assertRegex(made.difference(), "acknowledged records of epoch .* are gone.*mark-")

    def test_a_change_that_the_feed_does_not_bring_is_caught_by_the_readers_that_lag(self) -> None:
        made = self.quiet()
        namespace, name = self.marks(made)[0]
        # Its version is behind every cursor.
        self.execute(
            made,
            "UPDATE nodb_record SET payload = :payload "
            "WHERE namespace = :namespace AND record_key = :name",
            payload=codec.encode({"n": 7}, known_namespaces.CELLS.schema, record=name),
            namespace=namespace,
            name=name,
        )
        with self.subTest("readers that lag"):
            held = made.records()
            expected = {
                key: child.digest(payload)
                for key, payload in held.items()
                if key[0] not in child.BEATS
            }
            self.assertIn(f"differs in [('{namespace}', '{name}')]", made._lagging(expected))
        with self.subTest("a sweep that repairs it"):
            patience.wait_until(
                lambda: any(each["swept"] for each in made.statuses()), 60.0, "a sweep"
            )
            with self.assertRaisesRegex(world.Broken, "sweeps repaired what the feed did not"):
                made.check_sweeps()

    def test_an_epoch_that_is_given_up_for_no_reason_fails_its_trial(self) -> None:
        engine = self.enterContext(engines.SQLite())
        made = world.World(engine.site())
        self.addCleanup(made.stop)
        made.start()

        def strike(trial: fault.Trial) -> None:
            trial.world.client.reset()
            trial.healed()
            trial.recovered()

        for loses, passes in ((True, True), (False, False)):
            tried = fault.Fault("reset", 30.0, strike, loses=loses)
            outcome = fault.Trial(tried, engine, made, 0).run()
            self.assertIs(passes, outcome.passed, outcome.detail)
        self.assertIn("with all its records was given up", outcome.detail)

    def test_schedulers_that_do_not_decide_have_not_recovered(self) -> None:
        with self.assertRaisesRegex(world.Broken, "not recovered within"):
            self.world().recover(1.0)

    def test_a_step_that_nobody_comes_by_fails_its_trial(self) -> None:
        made = self.world()
        victim = made.schedulers[0]
        victim.ask("arm", "driver", "no such step", steps.Action.KILL.value, "")
        made.work()
        self.assertFalse(victim.reached(3.0))


class TestReport(unittest.TestCase):
    def test_outcomes_survive_json_and_steps_share_a_row(self) -> None:
        outcomes = [
            fault.Outcome("SQLite", f"kill at driver: {step}", True, 0.5, 10.0, 1.0, 3, 4.0, {})
            for step in ("lock", "commit")
        ]
        outcomes.append(
            fault.Outcome("SQLite", "reset", False, None, 10.0, None, 3, 4.0, {}, "broken")
        )
        self.assertEqual(outcomes, report.from_json(report.to_json(outcomes)))
        text = report.to_rst(outcomes)
        self.assertIn("each of 2 steps of the driver\n     - 2 of 2\n", text)
        self.assertIn("     - reset\n     - 0 of 1\n     - -\n", text)
