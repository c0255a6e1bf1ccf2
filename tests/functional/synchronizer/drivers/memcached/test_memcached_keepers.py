# SPDX-License-Identifier: Apache-2.0
"""Who shuts writers out, begins epochs and collects dies or stands still at every step."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.memcached import memcached_case, test_memcached

Step = memcached.Step

COLLECTING = (Step.FLOOR, Step.MARK, Step.UNLIST, Step.REMOVE, Step.STRIKE)
#: Behind these, and behind a floor, a reader takes a snapshot.
OF_EPOCHS = (Step.LIST, Step.EPOCH, Step.REPLACE, Step.SWEEP, Step.DELIST)
STEPS = (
    *(Step.GIVE_UP, Step.VOID, Step.FENCE, Step.STABLE),
    *(*OF_EPOCHS, *COLLECTING, Step.BAR),
)

_Job = Callable[[contract.Synchronizer], object]


class TestKeepers(step_case.SlowClients, memcached_case.MemcachedCase):
    def test_the_steps_tried_here_and_those_of_writes_are_all_that_there_are(self) -> None:
        of_writes = {step for steps in test_memcached.STEPS.values() for step in steps}
        self.assertEqual(set(Step), of_writes | set(STEPS))
        self.assertEqual(tuple(step.value for step in Step), self.client().STEPS)

    def test_one_killed_at_any_step_blocks_nobody_and_misleads_nobody(self) -> None:
        for step in STEPS:
            with self.subTest(step=step.name):
                job = self._prepare(step)
                self.die(step, job)
                self._go_on(step)

    def test_one_paused_at_any_step_does_no_harm_when_it_goes_on(self) -> None:
        for step in STEPS:
            with self.subTest(step=step.name):
                job = self._prepare(step)
                reached, released = threading.Event(), threading.Event()
                client = self.make()
                self.addCleanup(client.close)

                def stand_still(
                    reached: threading.Event = reached, released: threading.Event = released
                ) -> None:
                    reached.set()
                    released.wait(contract_case.PATIENCE_SECONDS)

                client.on_step = step_case.at(step, stand_still)
                thread = threading.Thread(target=_tried, args=(job, client), daemon=True)
                thread.start()
                self.assertTrue(reached.wait(contract_case.PATIENCE_SECONDS))
                self._go_on(step)
                released.set()
                thread.join(contract_case.PATIENCE_SECONDS)
                self.assertFalse(thread.is_alive())
                self._go_on(step)

    def _go_on(self, step: memcached.Step) -> None:
        """Write, follow, collect and count as if nothing had happened."""
        late = contract_case.FeedReader(self.client())
        self.rewrite(contract_case.key("hurt"))
        self.put(self.writer, f"other-{time.monotonic_ns()}", b"later")
        if step in (*OF_EPOCHS, *COLLECTING):
            self.reader.catch_up()
        for reader in (self.reader, late):
            self.assert_reader_is_right(reader)
        self.assertEqual(b"rewritten", self.reader.held[contract_case.key("hurt")].payload)
        self.drop(
            self.writer, self.writer.read([contract_case.key("hurt")])[contract_case.key("hurt")]
        )
        self.assert_reader_is_right(late)
        self._collect(self.writer)
        statistics = self.writer.statistics()
        self.assertEqual(0, statistics["tombstones"])
        self.assertEqual(len(late.held), statistics["records"])
        # The floor has passed those who had not come so far.
        self.reader.catch_up()

    def _prepare(self, step: memcached.Step) -> _Job:
        """Leave behind what makes a job come by a step; returns the job."""
        standing = self.rewrite(contract_case.key("hurt"))
        update = records.Write(standing.key, standing.revision, b"update")
        if step is Step.GIVE_UP:
            return lambda client: self._write_and_lose(client, update)
        if step is Step.VOID:
            self.die(Step.SLOT, lambda client: client.write([update]))
        elif step is Step.FENCE:
            self.die(Step.RECORD, lambda client: client.write([update]))
        elif step is Step.EPOCH:
            self.server.flush_all()
        elif step in OF_EPOCHS:
            return lambda client: client.reset()
        elif step is Step.BAR:
            self.die(Step.REPLACE, lambda client: client.reset())
            return lambda client: client.collect(3600.0)
        elif step in COLLECTING:
            self.drop(self.writer, standing)
            return self._collect
        return lambda client: contract_case.FeedReader(client).catch_up()

    def _collect(self, client: contract.Synchronizer) -> None:
        """Collect until a tombstone went; the server's clock counts whole seconds."""
        self.eventually(
            lambda: client.collect(0.0).tombstones > 0 or not client.statistics()["tombstones"],
            "tombstones are old enough",
        )

    def _write_and_lose(self, client: contract.Synchronizer, update: records.Write) -> None:
        """Write while another writes the same record just before."""
        told = client.on_step

        def observe(step: str) -> None:
            if step == Step.RECORD.value and not lost:
                lost.append(self.rewrite(update.key))
            told(step)

        lost: list[records.Record] = []
        client.on_step = observe
        client.write([update])


def _tried(job: _Job, client: contract.Synchronizer) -> None:
    """Open a client for a job that may find its epoch replaced."""
    with contextlib.suppress(errors.BackendUnavailable, contract.SnapshotInterrupted):
        client.open()
        job(client)
