# SPDX-License-Identifier: Apache-2.0
"""A scheduler service that is started again begins with its machine's checkpoint."""

from __future__ import annotations

import tempfile
import threading
import time

from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract
from tests.functional.nova_adapter.service import test_start_gate

_A_WHILE_SECONDS = 1.0


class CheckpointStartTest(test_start_gate.StartGateCase):
    def begin(self) -> None:
        self.override("checkpoint_directory", self.directory, "nodb_scheduler")
        super().begin()

    def setUp(self) -> None:
        self.directory = f"{self.enterContext(tempfile.TemporaryDirectory())}/checkpoint"
        super().setUp()

    def test_it_decides_from_memory_when_all_is_proved_and_not_before(self) -> None:
        self.hub.faults.come_up()
        first = self.worker
        self.wait_for(lambda: first.starting() is None and first.decisions.columns_made, "a start")
        self.assertEqual("absent", first.checkpoint.status.start)
        written = self.wait_for(
            lambda: (
                first._writer.attempt(threading.Event()) is checkpoint_contract.WriteOutcome.WRITTEN
            ),
            "a checkpoint",
        )
        self.assertTrue(written)
        self.stop()

        super().begin()
        second = self.worker
        self.assertIsNot(first, second)
        sent = self.send()
        time.sleep(_A_WHILE_SECONDS)
        # The back end is away: nothing says that what the file holds is still so.
        self.assertFalse(sent.done())
        self.assertFalse(second.replicator.alive(1e9))
        self.hub.faults.come_up()
        [selections] = self.answer(sent)

        self.assertIn(selections[0].nodename, {"node-h1", "node-h2"})
        self.assertEqual({"memory": 1}, second.candidates())
        self.assertEqual({}, second.fallbacks())
        self.assertEqual(checkpoint_contract.RESTORED, second.checkpoint.status.start)
        [beat] = [
            state["checkpoint"]
            for _key, state in second.store.snapshot().namespace("schedulers").states()
            if state["pid"] and state.get("checkpoint", {}).get("start") == "restored"
        ]
        self.assertGreater(beat["bytes"], 0)
