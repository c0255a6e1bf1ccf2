# SPDX-License-Identifier: Apache-2.0
"""Every answer of a guarded Placement says so."""

import requests.structures
import testtools
import webob
import webob.dec
import webob.exc

from nova_nodb_scheduler.placement_adapter import guard_header


@webob.dec.wsgify
def _application(request: webob.Request) -> webob.Response:
    if request.path == "/none":
        raise webob.exc.HTTPNotFound
    return webob.Response("fine")


class GuardHeaderTest(testtools.TestCase):
    def test_it_is_on_answers_and_on_refusals(self) -> None:
        application = guard_header.added_to(_application)
        for path, status in (("/", 200), ("/none", 404)):
            answer = webob.Request.blank(path).get_response(application)
            self.assertEqual(status, answer.status_int)
            self.assertTrue(guard_header.is_in(answer.headers))

    def test_it_is_not_on_another_ones(self) -> None:
        answer = webob.Request.blank("/").get_response(_application)
        self.assertFalse(guard_header.is_in(answer.headers))

    def test_it_is_known_in_any_case_of_its_letters(self) -> None:
        headers = {guard_header.NAME.lower(): guard_header.VALUE}
        self.assertTrue(guard_header.is_in(requests.structures.CaseInsensitiveDict(headers)))
