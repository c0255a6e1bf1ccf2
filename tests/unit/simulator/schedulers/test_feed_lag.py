# SPDX-License-Identifier: Apache-2.0
"""A batch's way into the slowest scheduler is measured from notes of known times."""

import testtools

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.simulator.schedulers import feed_lag
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.wire import codec


class FeedLagsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.lags = feed_lag.FeedLags()
        self.lags.begin(0, 1, 0.0)
        self.lags.begin(1, 1, 0.0)

    def test_the_slowest_scheduler_counts(self):
        self.lags.add(0, 1, [(10.25, 5)])
        self.lags.add(1, 1, [(10.125, 4), (10.5, 7)])

        self.assertEqual([0.5, 0.25], self.lags.of([(10.0, 5, 1), (10.25, 6, 1)]))

    def test_what_came_before_its_write_returned_took_no_time(self):
        self.lags.add(0, 1, [(9.5, 5)])

        self.assertEqual([0.0], self.lags.of([(10.0, 5, 1)]))

    def test_a_later_note_of_an_earlier_place_says_nothing(self):
        self.lags.add(0, 1, [(10.5, 7), (11.0, 3)])

        self.assertEqual([0.5], self.lags.of([(10.0, 2, 1)]))

    def test_who_ended_before_it_came_or_began_after_it_was_written_is_left_out(self):
        self.lags.add(0, 1, [(10.5, 5)])
        self.lags.begin(0, 2, 20.0)
        self.lags.add(0, 2, [(21.0, 9)])
        self.lags.add(1, 1, [(30.0, 9)])

        # Of the second batch the killed one knew nothing, nor its successor.
        self.assertEqual([20.0, 18.0], self.lags.of([(10.0, 5, 1), (12.0, 6, 1)]))
        self.assertEqual([], self.lags.of([(31.0, 10, 1)]))


class FeedLogTest(testtools.TestCase):
    def test_the_feed_is_noted_and_the_snapshot_is_not(self):
        hosts = known_namespaces.REPORTERS
        declared = [known_namespaces.SCHEDULERS, hosts]
        shared = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        shared.open()

        def put(name):
            write = records.Write(
                records.RecordKey(hosts.name, name), 0, codec.encode({}, hosts.schema)
            )
            return shared.write([write])[0].record.version

        put("before")
        store = host_state_store.HostStateStore(declared, codec.decode_state)
        follower = replicator.Replicator(shared, store, declared, identity="a")
        log = feed_lag.FeedLog(follower, clock=lambda: 7.0)
        follower.subscribe(log.listen)
        while follower.status().cursor_version is None:
            follower.step()
        follower.step()
        log.take()
        version = put("after")
        follower.step()

        self.assertEqual(((7.0, version),), log.take())
        self.assertEqual((), log.take())
