# SPDX-License-Identifier: Apache-2.0
"""What clients remember of epochs: none comes back, all agree, few are begun."""

from __future__ import annotations

import functools
import itertools
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory
from tests.unit.synchronizer.replication import replicas

PAUSE = epoch_memory.PAUSE_SECONDS
LONGEST = epoch_memory.LONGEST_PAUSE_SECONDS


def rank(number: int, turns: int = 0) -> epoch_memory.Rank:
    return epoch_memory.Rank(number, f"epoch-{number}", turns)


class TestMemory(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = replicas.Clock()
        self.memory = epoch_memory.EpochMemory(self.clock)

    def test_a_client_that_has_seen_nothing_adopts_what_it_finds(self) -> None:
        self.assertTrue(self.memory.admits(rank(1)))

    def test_an_older_epoch_is_not_adopted_and_not_remembered(self) -> None:
        self.memory.admits(rank(2))
        self.assertFalse(self.memory.admits(rank(1)))
        self.assertEqual(rank(2), self.memory.newest)

    def test_of_two_that_began_at_once_the_name_decides_for_all(self) -> None:
        one, two = (epoch_memory.Rank(1, name) for name in "ab")
        self.memory.admits(two)
        self.assertFalse(self.memory.admits(one))

    def test_the_first_turn_is_taken_at_once_and_each_next_one_later(self) -> None:
        self.memory.admits(rank(1))
        self.assertEqual((0.0, 1), (self.memory.pause_seconds(), self.memory.next_turn()))
        for turns in range(1, 4):
            self.memory.admits(rank(10 + turns, turns))
            self.assertEqual(PAUSE * 2 ** (turns - 1), self.memory.pause_seconds())
            self.assertEqual(turns + 1, self.memory.next_turn())

    def test_no_pause_is_longer_than_the_longest_whatever_others_counted(self) -> None:
        self.memory.admits(rank(1, 10**6))
        self.assertEqual(LONGEST, self.memory.pause_seconds())

    def test_a_count_that_was_begun_anew_by_a_sleeper_does_not_shorten_the_pause(self) -> None:
        self.memory.admits(rank(1, 4))
        self.memory.admits(rank(2, 1))
        self.assertEqual(5, self.memory.next_turn())

    def test_an_epoch_in_force_for_long_ends_the_series(self) -> None:
        self.memory.admits(rank(1, 4))
        self.clock.pass_seconds(LONGEST + 1)
        self.assertEqual((0.0, 1), (self.memory.pause_seconds(), self.memory.next_turn()))


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    # Who looks next, at which of two servers, and after how many seconds.
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from((0, 1, 20, 300))),
        max_size=60,
    ),
    st.integers(0, 1),
)
def _alternate(looks: list[tuple[int, int, int]], last: int) -> None:
    clock = replicas.Clock()
    names = itertools.count()
    servers = [memory.MemoryHub(epoch_maker=lambda: f"{next(names):09}") for _ in range(2)]
    clients = [epoch_memory.EpochMemory(clock) for _ in range(4)]
    begun_at: list[float] = []

    unavailable = functools.partial(errors.BackendUnavailable, "a hub")

    def look(client: int, server: int) -> bool:
        before, found = clients[client].newest, servers[server].head().epoch
        try:
            servers[server].admit(clients[client], unavailable)
            refused = False
        except errors.BackendUnavailable:
            refused = True
        after = clients[client].newest
        # It never goes back, and stands where the server stands or refuses.
        assert before is None or (after is not None and after >= before)
        if not refused:
            assert after is not None and after.name == servers[server].head().epoch
        if servers[server].head().epoch != found:
            begun_at.append(clock())
        return not refused

    for client, server, seconds in looks:
        clock.pass_seconds(seconds)
        look(client, server)
    # One turn of each client at once, then no more than one of each in a pause.
    elapsed = sum(seconds for _client, _server, seconds in looks)
    assert len(begun_at) <= len(clients) * (1 + elapsed / PAUSE)
    # Where the address leads to one server in the end, all agree.
    for _ in range(2):
        clock.pass_seconds(LONGEST)
        for client in range(len(clients)):
            look(client, last)
    assert all(look(client, last) for client in range(len(clients)))
    assert len({client.newest for client in clients}) == 1


class TestTwoServers(unittest.TestCase):
    def test_clients_that_see_two_servers_in_any_order_agree_after_few_epochs(self) -> None:
        _alternate()
