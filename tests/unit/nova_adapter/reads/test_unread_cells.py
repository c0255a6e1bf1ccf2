# SPDX-License-Identifier: Apache-2.0
"""What cells that could not be read are told by, from a scheduler's read to a conductor."""

import oslo_messaging as messaging
import testtools
from nova import context as nova_context
from nova.scheduler.client import query
from oslo_messaging._drivers import common

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.reads import unread_cells

TEXT = "Cell c1: the back end is away."


class HostsNotReadTest(testtools.TestCase):
    def test_cells_of_one_reason_share_a_sentence(self):
        found = unread_cells.missing({"c2": "away.", "c1": "away.", "c3": "torn."})
        self.assertEqual("Cells c1, c2: away. Cell c3: torn.", found)

    def test_each_of_novas_ways_to_end_a_request_without_harm_knows_it(self):
        error = unread_cells.HostsNotRead(TEXT)
        for kind in (errors.NodbError, messaging.RemoteError, ValueError):
            self.assertIsInstance(error, kind)
        self.assertEqual((TEXT,), error.args)

    def asked(self, raised):
        def select(_self, *_args, **_kwargs):
            raise raised

        self.patch(unread_cells, "_select_destinations", select)
        return self.assertRaises(
            messaging.RemoteError, unread_cells.select_destinations, None, "context"
        )

    def test_a_conductor_gets_it_as_what_it_is(self):
        error = unread_cells.HostsNotRead(TEXT)
        sent = common.serialize_remote_exception((type(error), error, None))
        came = common.deserialize_remote_exception(sent, ["nova.exception"])
        self.assertNotIsInstance(came, unread_cells.HostsNotRead)
        raised = self.asked(came)
        self.assertIsInstance(raised, unread_cells.HostsNotRead)
        self.assertEqual(str(error), str(raised))

    def test_other_errors_of_a_scheduler_stay_what_they_are(self):
        other = messaging.RemoteError("KeyError", "x", [])
        self.assertIs(other, self.asked(other))

    def test_it_is_put_in_place_once_and_not_over_anothers(self):
        self.patch(query.SchedulerQueryClient, "select_destinations", None)
        unread_cells.install_in_conductor()
        self.assertIsNone(query.SchedulerQueryClient.select_destinations)
        query.SchedulerQueryClient.select_destinations = unread_cells._select_destinations
        for _ in range(2):
            unread_cells.install_in_conductor()
            self.assertIs(
                unread_cells.select_destinations, query.SchedulerQueryClient.select_destinations
            )


class NotedTest(testtools.TestCase):
    def scatter(self, results):
        self.patch(unread_cells, "_scatter", lambda *_args, **_kwargs: results)
        return unread_cells.scatter_gather_cells(None, [], 60, None)

    def test_cells_that_raise_or_are_silent_are_noted_and_passed_on(self):
        silent = nova_context.did_not_respond_sentinel
        results = {"a": [], "b": KeyError(), "c": OSError("gone.\n[SQL: x]"), "d": silent}
        with unread_cells.noted() as found:
            self.assertIs(results, self.scatter(results))
        self.assertEqual({"b": "KeyError.", "c": "gone.", "d": "no answer in 60 s."}, found)

    def test_what_is_read_outside_is_nobodys(self):
        with unread_cells.noted() as outer:
            with unread_cells.noted() as inner:
                self.scatter({"b": OSError("x")})
            self.scatter({})
        self.scatter({"c": OSError("x")})
        self.assertEqual(({}, ["b"]), (outer, list(inner)))
