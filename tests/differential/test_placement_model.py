# SPDX-License-Identifier: Apache-2.0
"""The model of Placement's rule answers as a real Placement does."""

from __future__ import annotations

import hypothesis
from nova import context as nova_context
from nova import exception, objects
from nova.scheduler import request_filter
from nova.scheduler import utils as scheduler_utils
from oslotest import base

from tests.differential import cases, placement_model, real_placement, running, specs, stock
from tests.differential.drawn import cluster_strategies, request_strategies, setting_strategies


class PlacementModelTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.placement = real_placement.Placement()
        self.addCleanup(self.placement.stop)
        self.modelled = self.refused = self.given = 0

    def test_the_model_gives_what_placement_gives(self) -> None:
        @running.settings(share=running.PLACEMENT_SHARE)
        @hypothesis.given(
            cluster_strategies.clusters(),
            setting_strategies.settings(),
            request_strategies.requests(),
        )
        def compare(
            cluster: cases.Cluster,
            settings: setting_strategies.Settings,
            asked: request_strategies.Asked,
        ) -> None:
            with stock.configured(settings), stock.databases_of(cluster):
                self._compare(cluster, asked)

        compare()
        self.assertGreater(self.modelled, 0)
        self.assertGreater(self.given, 0, "Placement never gave a candidate")

    def _compare(self, cluster: cases.Cluster, asked: request_strategies.Asked) -> None:
        context = nova_context.get_admin_context()
        try:
            spec = specs.request_spec(asked, cluster)
            request_filter.process_reqspec(context, spec)
            query = scheduler_utils.resources_from_request_spec(
                context, spec, stock.HostManager(cluster)
            )
            modelled = placement_model.candidates(cluster, query)
        except (
            specs.UnthinkableRequest,
            exception.RequestFilterFailed,
            exception.NoValidHost,
            placement_model.Unmodelled,
        ):
            hypothesis.reject()
        real = self.placement.candidates(cluster, query)
        self.assertEqual(
            placement_model.canonical(real),
            placement_model.canonical(modelled),
            query.to_querystring(),
        )
        self.modelled += 1
        self.given += bool(real)
