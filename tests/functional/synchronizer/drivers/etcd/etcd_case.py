# SPDX-License-Identifier: Apache-2.0
"""An etcd, or a part of one, and clients of it."""

from __future__ import annotations

from typing import Any

from nova_nodb_scheduler.synchronizer.drivers import etcd
from nova_nodb_scheduler.testing import etcd_server
from tests.functional.synchronizer.drivers import step_case

Step = etcd.Step

TIMEOUT_SECONDS = 2.0


class EtcdCase(step_case.StepCase[etcd.EtcdSynchronizer]):
    #: Whether the test stops, pauses or compacts the server.
    private = False
    #: Of the server's command line; these make it a private one.
    options: tuple[str, ...] = ()

    def setUp(self) -> None:
        super().setUp()
        self.etcd = self.enterContext(etcd_server.Etcd(*self.options, private=self.private))
        self.server = self.etcd.server

    def make(self, **changes: Any) -> etcd.EtcdSynchronizer:
        """Return a new client, not open."""
        settings = {
            "endpoints": (self.etcd.url,),
            "key_prefix": self.etcd.key_prefix,
            "timeout_seconds": TIMEOUT_SECONDS,
            **changes,
        }
        return etcd.EtcdSynchronizer(etcd.EtcdOptions(**settings))

    def through(self, address: str, **changes: Any) -> etcd.EtcdSynchronizer:
        """Return an open client of another address."""
        return self.opened(endpoints=(f"http://{address}",), **changes)
