# SPDX-License-Identifier: Apache-2.0
"""What is told of reporters tells the worst of them, whatever their beats hold."""

import testtools

from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.observe import reporter_beats

NOW = 5000.0
WHO = ("api", "a", "*")


def beat(beat_at=NOW, **more):
    return {"binary": "api", "host": "a", "cell": "*", "beat_at": beat_at, **more}


def figures(*beats):
    return reporter_beats.figures(beats, NOW)


class ReporterBeatsTest(testtools.TestCase):
    def test_the_reporters_of_a_service_on_a_host_are_told_together(self):
        found = figures(beat(NOW - 3.0, queued=2, refused=1), beat(NOW - 40.0, queued=5))
        self.assertEqual(
            {
                "living": {WHO: 2.0},
                "queued": {WHO: 7.0},
                "silent": {WHO: 40.0},
                "refused": {WHO: 1.0},
            },
            found,
        )

    def test_a_beat_of_the_future_is_as_old_as_it_is_far(self):
        """The back end's clock was set back, and its reporter has died since."""
        self.assertEqual(2000.0, figures(beat(NOW + 2000.0))["silent"][WHO])
        little = backend_time.MARGIN_SECONDS / 2
        self.assertEqual(0.0, figures(beat(NOW + little))["silent"][WHO])

    def test_a_beat_that_cannot_be_read_hides_no_other(self):
        other = {**beat(NOW - 40.0, queued=4), "host": "b"}
        for odd in ({"queued": "many"}, {"refused": None}, {"beat_at": "now"}, {"queued": [1]}):
            with self.subTest(odd=odd):
                found = figures(beat(**odd), other)
                self.assertEqual(40.0, found["silent"]["api", "b", "*"])
                self.assertEqual(4.0, found["queued"]["api", "b", "*"])
                self.assertEqual(1.0, found["living"][WHO])

    def test_when_a_reporter_spoke_that_does_not_say_is_long_ago(self):
        self.assertEqual(NOW, figures(beat("now"))["silent"][WHO])
