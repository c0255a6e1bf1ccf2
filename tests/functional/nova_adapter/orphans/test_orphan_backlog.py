# SPDX-License-Identifier: Apache-2.0
"""What processes noted during an outage of Placement is looked through by hosts, with few calls.

Nova's databases and a real Placement, whose calls are counted. The worker's own duty is stopped.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.nova_adapter.orphans import orphan_verdicts
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from tests.functional.nova_adapter.orphans import test_orphans

HOSTS, NOTES, STANDING = 4, 20, 3
RESOURCES = {"VCPU": 1}


class BacklogTest(test_orphans.OrphansCase):
    def setUp(self) -> None:
        super().setUp()
        self.runtime.decisions.orphan_duty.stop()
        self.calls: collections.Counter[str] = collections.Counter()

    def noted(self) -> tuple[set[str], list[str]]:
        """Note many of some hosts; return all, and those whose write was carried out."""
        noted: dict[str, dict[str, model.HeldClaim]] = {}
        standing: list[str] = []
        for _ in range(HOSTS):
            host = str(uuid.uuid4())
            self.provider(host, VCPU=NOTES)
            consumers = [str(uuid.uuid4()) for _ in range(NOTES)]
            noted[host] = {each: self.held() for each in consumers}
            self.allocate_all(host, consumers[:STANDING])
            standing += consumers[:STANDING]
        cache = record_editor.RecordCache()
        self.assertEqual(HOSTS, lapsed_claims.note_lapsed(self.synchronizer, cache, noted))
        names = {each for consumers in noted.values() for each in consumers}
        self.wait(lambda: names <= self.suspects())
        return names, standing

    def held(self) -> model.HeldClaim:
        ended = self.synchronizer.now_seconds()
        return model.HeldClaim(
            RESOURCES, model.ClaimState.PENDING, str(uuid.uuid4()), test_orphans.DEAD, ended
        )

    def allocate_all(self, host: str, consumers: list[str]) -> None:
        allocation = {
            "allocations": {host: {"resources": RESOURCES}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
        }
        self.ask("post", "/allocations", dict.fromkeys(consumers, allocation))

    def suspects(self) -> set[str]:
        return set(orphan_verdicts.find_suspects(self.runtime.store.snapshot()))

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count what the finder asks; the worker's threads have the same client."""
        own, thread = self.client.get, threading.current_thread()

        def get(url: str, *args: Any, **kwargs: Any) -> Any:
            kind = "listings" if url.startswith("/resource_providers/") else "reads"
            self.calls[kind] += threading.current_thread() is thread
            return own(url, *args, **kwargs)

        with mock.patch.object(self.client, "get", get):
            yield

    def test_a_backlog_is_ended_with_a_listing_a_host_and_a_read_for_each_that_stands(self):
        names, standing = self.noted()
        kept = standing.pop()
        self.build_request(kept)
        with self.counted():
            self.turns(2, seconds=31.0)
            self.assertEqual((HOSTS * 2, len(standing) * 2 + 2), self.counts())
            self.turns(2, seconds=31.0)
        self.assertEqual(len(standing), self.finder.status.deleted)
        self.assertEqual([kept], [each for each in (*standing, kept) if self.is_allocated(each)])
        self.now += 300.0
        self.finder.turn()
        self.wait(lambda: names & self.suspects() == {kept})

    def test_what_a_server_got_meanwhile_under_its_uuid_is_no_orphan_of_any_host(self):
        """A listing shows it with other amounts than the note: another wrote it."""
        host = str(uuid.uuid4())
        self.provider(host, VCPU=NOTES)
        consumers = [str(uuid.uuid4()) for _ in range(NOTES)]
        self.allocate_all(host, consumers)
        noted = {each: self.held() for each in consumers}
        twice = {name: model.HeldClaim({"VCPU": 2}, *_rest(each)) for name, each in noted.items()}
        lapsed_claims.note_lapsed(self.synchronizer, record_editor.RecordCache(), {host: twice})
        self.wait(lambda: set(consumers) <= self.suspects())
        with self.counted():
            self.turns(1)
        self.assertEqual((1, 0), self.counts())
        self.turns(12)
        self.assertTrue(all(map(self.is_allocated, consumers)))

    def counts(self) -> tuple[int, int]:
        return self.calls["listings"], self.calls["reads"]


def _rest(held: model.HeldClaim) -> tuple[Any, ...]:
    return held.state, held.claim_id, held.writer, held.deadline_seconds
