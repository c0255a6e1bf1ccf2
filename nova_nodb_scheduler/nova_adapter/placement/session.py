# SPDX-License-Identifier: Apache-2.0
"""The mirror's way to Placement: Nova's own report client, its session and credentials."""

from __future__ import annotations

from typing import Any

from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement import reading


def get(path: str) -> Any:
    """GET a path of Placement; see :data:`.reading.Get`.

    The client is made with the first call, which may ask keystone.

    :raises ClientException: of keystoneauth1
    """
    client = report.report_client_singleton()
    return client.get(path, version=reading.MICROVERSION)
