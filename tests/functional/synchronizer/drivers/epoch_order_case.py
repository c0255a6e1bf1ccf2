# SPDX-License-Identifier: Apache-2.0
"""What every engine must do where clients see different servers, or data are put back."""

from __future__ import annotations

from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.testing import proxy
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case


class EpochOrderCase(step_case.StepCase[Any]):
    """What both engines must do; their classes say how the data is put back."""

    first_port: int
    second_port: int

    def keep(self) -> Any:
        """Return all that the server holds."""
        raise NotImplementedError

    def put_back(self, kept: Any) -> None:
        """Let the server hold that again, while it runs."""
        raise NotImplementedError

    def test_clients_that_see_two_servers_alternately_agree_once_they_see_one(self) -> None:
        ports = (self.first_port, self.second_port)
        fronts = [self.enterContext(proxy.Proxy(self.first_port)) for _ in range(2)]
        clients = [self.through(front.address) for front in fronts]  # type: ignore[attr-defined]
        seen: set[str] = set()
        refused = 0
        for number in range(12):
            for place, front in enumerate(fronts):
                front.redirect(ports[(number + place) % 2])
            for client in clients:
                try:
                    seen.add(client.head().epoch)
                except errors.BackendUnavailable:
                    refused += 1
        self.assertLessEqual(len(seen), 2 + len(clients))
        self.assertGreater(refused, 0)
        # One of the servers holds the newest epoch of all: both agree on it at once.
        agreed: set[records.Cursor] = set()
        for port in ports:
            for front in fronts:
                front.redirect(port)
            try:
                written = self.put(clients[0], f"at {port}", b"one")
                agreed = {client.head() for client in clients}
                held = [contract_case.everything(client) for client in (*clients, self._at(port))]
            except errors.BackendUnavailable:
                continue
            self.assertEqual(1, len(agreed))
            self.assertEqual([{written.key: written}] * 3, held)
            return
        self.fail("neither server is served")

    def test_data_put_back_under_the_same_epoch_is_not_gone_on_from(self) -> None:
        client, asleep = self.client(), self.client()
        record = self.put(client, "claims", b"before")
        asleep.head()
        kept = self.keep()
        reader = contract_case.FeedReader(self.client())
        granted = self.put(client, "claims", b"granted", record.revision)
        reader.catch_up()
        epoch = client.head().epoch
        self.put_back(kept)
        self.assertNotEqual(epoch, client.head().epoch)
        for each in (client, asleep, self.client()):
            self.assertEqual({}, contract_case.everything(each))
        [late] = client.write([records.Write(granted.key, granted.revision, b"late")])
        self.assertEqual(records.WriteResult(records.Verdict.LOST, None), late)
        again = self.put(client, "claims", b"published anew")
        reader.catch_up()
        self.assertEqual({again.key: again}, reader.held)

    def test_records_are_not_read_of_data_that_were_put_back(self) -> None:
        client = self.client()
        before = self.put(client, "claims", b"before")
        kept = self.keep()
        self.put(client, "claims", b"granted", before.revision)
        self.put_back(kept)
        # Nothing else was asked between.
        self.assertEqual({}, client.read([before.key]))

    def test_a_write_tells_nothing_of_data_that_were_put_back(self) -> None:
        client = self.client()
        before = self.put(client, "claims", b"before")
        kept = self.keep()
        granted = self.put(client, "claims", b"granted", before.revision)
        self.put_back(kept)
        # Nothing else was asked between.
        [late] = client.write([records.Write(granted.key, granted.revision, b"late")])
        self.assertEqual(records.WriteResult(records.Verdict.LOST, None), late)
        self.assertEqual({}, client.read([granted.key]))

    def test_what_was_written_to_data_that_were_put_back_is_not_told_as_won(self) -> None:
        client = self.client()
        before = self.put(client, "claims", b"before")
        kept = self.keep()
        self.put(client, "claims", b"granted", before.revision)
        self.put_back(kept)
        new = records.Write(contract_case.key("new"), 0, b"new")
        [result] = client.write([new])
        # It may have been carried out in the epoch that is begun.
        found = client.read([new.key])
        self.assertEqual({new.key: result.record} if result.won else {}, found)

    def test_a_feed_behind_its_own_writers_notices_data_that_were_put_back(self) -> None:
        client = self.client()
        cursor = client.head()
        before = self.put(client, "claims", b"before")
        kept = self.keep()
        self.put(client, "claims", b"granted", before.revision)
        self.put_back(kept)
        self.assertIsInstance(client.fetch(cursor), records.ResyncNeeded)
        self.assertNotEqual(cursor.epoch, client.head().epoch)

    def test_a_reader_notices_data_that_were_put_back(self) -> None:
        client = self.client()
        self.put(client, "claims", b"before")
        kept = self.keep()
        self.put(client, "other", b"lost")
        reader = contract_case.FeedReader(self.client())
        self.put_back(kept)
        reader.catch_up()
        self.assertEqual((1, {}), (reader.resyncs, reader.held))

    def _at(self, port: int) -> Any:
        """Return a new client of a server, which has seen nothing."""
        return self.through(f"127.0.0.1:{port}")  # type: ignore[attr-defined]
