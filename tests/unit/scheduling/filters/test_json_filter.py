# SPDX-License-Identifier: Apache-2.0
"""A query that was read for its key is read for hosts, too, however deep it is nested."""

import bisect
import unittest

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.filters import json_filter
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract


def nested(depth):
    text = '["and", ' * depth + '[">", "$free_ram_mb", 1]' + "]" * depth
    return requests.Request(flavor=requests.Flavor(), hints={"query": (text,)})


def deeper(frames, function):
    return deeper(frames - 1, function) if frames else function()


class NestedQueryTest(unittest.TestCase):
    def test_whoever_looks_at_hosts_may_have_less_of_the_stack_left(self):
        frame = host_frame.HostFrame(lambda uuid: [], lambda uuid, path: None)
        row = frame.put(host_facts.HostFacts("uuid", "cell", "host", "node", free_ram_mb=4096))
        own = json_filter.JsonFilter(decision_settings.SchedulingOptions())

        def is_left_to_nova(depth):
            return own.key(nested(depth), frame) is plugin_contract.OnHostObjects.NEEDED

        deepest = bisect.bisect_left(range(1000), True, key=is_left_to_nova) - 1
        self.assertGreater(deepest, 30)
        for depth in (deepest, deepest - 1):
            mask = deeper(100, lambda: own.mask(nested(depth), frame, slice(None)))  # noqa: B023
            self.assertTrue(mask[row])
