# SPDX-License-Identifier: Apache-2.0
"""Every answer of a guarded Placement says so."""

import requests.structures
import testtools
import webob
import webob.dec
import webob.exc

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.placement_adapter import (
    guard_header,
    requested_trees,
)


@webob.dec.wsgify
def _application(request: webob.Request) -> webob.Response:
    if request.path == "/none":
        raise webob.exc.HTTPNotFound
    asked = requested_trees.of_request()
    if request.path == "/compared":
        assert asked is not None
        asked.differing = frozenset()
    if request.path == "/broken":
        assert asked is not None
        # A transaction found them so, and came to nothing.
        asked.differing = frozenset()
        raise webob.exc.HTTPConflict
    if request.path == "/differ":
        assert asked is not None
        asked.differing = frozenset(asked.marks)
        raise webob.exc.HTTPConflict
    return webob.Response("fine")


class GuardHeaderTest(testtools.TestCase):
    def test_it_is_on_answers_and_on_refusals(self) -> None:
        application = guard_header.added_to(_application)
        for path, status in (("/", 200), ("/none", 404)):
            answer = webob.Request.blank(path).get_response(application)
            self.assertEqual(status, answer.status_int)
            self.assertTrue(guard_header.is_in(answer.headers))
            self.assertTrue(guard_header.knows_conditions(answer.headers))

    def test_it_is_not_on_another_ones(self) -> None:
        answer = webob.Request.blank("/").get_response(_application)
        self.assertFalse(guard_header.is_in(answer.headers))
        self.assertFalse(guard_header.knows_conditions(answer.headers))

    def test_it_is_known_in_any_case_of_its_letters(self) -> None:
        headers = {guard_header.NAME.lower(): guard_header.VALUE}
        self.assertTrue(guard_header.is_in(requests.structures.CaseInsensitiveDict(headers)))

    def test_it_says_what_came_of_the_trees_that_a_request_names(self) -> None:
        application = guard_header.added_to(_application)
        for path, expected in (
            ("/", "compares"),
            ("/none", "compares"),
            ("/compared", "same"),
            ("/broken", "compares"),
            ("/differ", "differ a-root"),
        ):
            request = webob.Request.blank(path, headers={tree_conditions.REQUEST: "a-root=7"})
            answer = request.get_response(application)
            self.assertEqual(expected, answer.headers[tree_conditions.ANSWER], path)
            # It is that request's alone.
            self.assertIsNone(requested_trees.of_request())

    def test_a_request_that_names_none_has_none(self) -> None:
        @webob.dec.wsgify
        def application(request: webob.Request) -> webob.Response:
            return webob.Response(str(requested_trees.of_request()))

        for headers in ({}, {tree_conditions.REQUEST: "nonsense"}):
            request = webob.Request.blank("/", headers=headers)
            answer = request.get_response(guard_header.added_to(application))
            self.assertEqual("None", answer.text)
