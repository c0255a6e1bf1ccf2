# SPDX-License-Identifier: Apache-2.0
"""What is logged and remembered of a request that Placement and Nova's own code refuse."""

from __future__ import annotations

from typing import Any

from nova import exception, objects

from tests.functional.nova_adapter.decisions import test_memory_decisions


class RefusalLineTest(test_memory_decisions.MemoryDecisionsCase):
    def refused(self, **wanted: Any) -> str:
        """Have a request refused; return the line of the log."""
        with (
            self.assertLogs(
                "nova_nodb_scheduler.nova_adapter.decisions.request_decider", "INFO"
            ) as logged,
            self.assertRaises(exception.NoValidHost),
        ):
            self.select(**wanted)
        [line] = logged.output
        return line

    def test_the_filters_that_refused_placements_candidates_are_counted(self):
        self.runtime.decisions._mirror.mirror._bound_seconds = -1.0
        self.override("image_properties_default_architecture", "x86_64", "filter_scheduler")
        image = objects.ImageMeta(properties=objects.ImageMetaProps(hw_architecture="aarch64"))

        line = self.refused(vcpus=3, image=image)

        # h2 has two VCPUs.
        self.assertIn("Placement was asked (mirror too old) and offered 1 providers", line)
        self.assertIn("placement 2 -> 1", line)
        self.assertIn("ImagePropertiesFilter 1 -> 0", line)
        [decision] = self.runtime.log._copy()
        self.assertIn(decision.servers[0], line)
        self.assertEqual(
            ("no_valid_host", "mirror too old"), (decision.outcome, decision.candidates)
        )
        last = decision.counts[-1]
        self.assertEqual(("ImagePropertiesFilter", 1, 0), (last.name, last.before, last.after))

    def test_that_placement_offered_nobody_is_told(self):
        line = self.refused(extra_specs={"resources1:CUSTOM_FPGA": "1"})

        self.assertIn("(more than one group) and offered 0 providers", line)
        self.assertIn("placement 2 -> 0", line)

    def test_what_unproved_states_would_say_is_not_counted(self):
        self.runtime.views.open = self.runtime.views.stock

        line = self.refused(vcpus=16)

        self.assertIn("(states not proved) and offered 0 providers.", line)
