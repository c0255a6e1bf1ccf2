# SPDX-License-Identifier: Apache-2.0
"""Both forms of the worked example, for Nova and over columns, say the same of drawn hosts."""

import logging
import pathlib
import sys

import fixtures
import hypothesis
import testtools
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import host_manager, weights

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "doc/source/contributor/examples"))
import example_site  # noqa: E402
import example_site_nova  # noqa: E402

HOSTS = st.lists(
    st.fixed_dictionaries(
        {
            "memory_mb": st.sampled_from([0, 8192, 512 * 1024 - 1, 512 * 1024, 2**40]),
            "watts": st.sampled_from([None, "", "0", "99.5", "1e3"]),
            "multiplier": st.sampled_from([None, "0", "-2", "three"]),
        }
    ),
    min_size=1,
    max_size=5,
)


class WorkedExampleTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        objects.register_all()
        self.useFixture(fixtures.FakeLogger(level=logging.ERROR))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(hosts=HOSTS, memory_mb=st.sampled_from([1, 8191, 8192, 65536]))
    def test_columns_say_what_nova_says_host_by_host(self, hosts, memory_mb):
        states, aggregates = [], []
        for number, drawn in enumerate(hosts):
            metadata = {}
            if drawn["multiplier"] is not None:
                metadata["power_weight_multiplier"] = drawn["multiplier"]
            state = host_manager.HostState(f"h{number}", f"n{number}", "cell")
            state.total_usable_ram_mb = drawn["memory_mb"]
            state.stats = {"watts": drawn["watts"]} if drawn["watts"] is not None else {}
            state.aggregates = [objects.Aggregate(metadata=metadata)]
            states.append(state)
            aggregates.append(host_facts.HostAggregate(f"g{number}", number, "", metadata))

        watts = {f"u{number}": drawn["watts"] for number, drawn in enumerate(hosts)}
        frame = host_frame.HostFrame(attribute=lambda uuid, path: watts[uuid])
        frame.set_aggregates(aggregates)
        rows = [
            frame.put(
                host_facts.HostFacts(
                    uuid=f"u{number}",
                    cell="cell",
                    host=f"h{number}",
                    node=f"n{number}",
                    memory_mb=drawn["memory_mb"],
                    aggregates=(f"g{number}",),
                )
            )
            for number, drawn in enumerate(hosts)
        ]

        spec = objects.RequestSpec(flavor=objects.Flavor(memory_mb=memory_mb))
        request = requests.Request(flavor=requests.Flavor(memory_mb=memory_mb))
        settings = decision_settings.SchedulingOptions()

        novas, ours = example_site_nova.BigHostsFilter(), example_site.BigHostsFilter(settings)
        passed = [True] * len(rows)
        if ours.key(request, frame) is not None:
            passed = ours.mask(request, frame, slice(None))[rows].tolist()
        self.assertEqual([novas.host_passes(state, spec) for state in states], passed)

        novas, ours = example_site_nova.PowerWeigher(), example_site.PowerWeigher(settings)
        weighed = [weights.WeighedHost(state, 0.0) for state in states]
        self.assertEqual(
            novas.weigh_objects(weighed, spec), ours.raw(request, frame, slice(None))[rows].tolist()
        )
        multipliers = ours.multiplier(request, frame, slice(None))
        if not isinstance(multipliers, float):
            multipliers = multipliers[rows].tolist()
        else:
            multipliers = [multipliers] * len(rows)
        self.assertEqual([novas.weight_multiplier(state) for state in states], multipliers)
