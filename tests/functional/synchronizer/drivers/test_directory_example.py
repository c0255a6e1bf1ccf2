# SPDX-License-Identifier: Apache-2.0
"""The documents' worked example of a driver keeps all that a driver owes."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from collections.abc import Callable

from oslo_config import cfg

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing import conformance, conformance_claims

EXAMPLES = pathlib.Path(__file__).parents[4] / "doc/source/contributor/examples"
sys.path.insert(0, str(EXAMPLES))
import directory_driver  # noqa: E402

sys.path.remove(str(EXAMPLES))


#: In memory, where there is such a place: each record is a file that is written through.
_PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class DirectoryCase:
    """A directory, by a link that can be made to lead to another."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        made = tempfile.TemporaryDirectory(dir=_PLACE)
        self.home = pathlib.Path(self.enterContext(made))  # type: ignore[attr-defined]
        self.path = self.home / "records"
        self._lead_to("first")

    def _lead_to(self, name: str) -> None:
        (self.home / name).mkdir(exist_ok=True)
        link = self.home / "link"
        link.symlink_to(name)
        os.replace(link, self.path)

    def make_synchronizer(self) -> contract.Synchronizer:
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        directory_driver.DirectorySynchronizer.register_opts(conf)
        conf.set_override("path", str(self.path), group="nodb_directory")
        made: contract.Synchronizer = directory_driver.DirectorySynchronizer.from_config(conf)
        return made

    def restart_backend(self) -> None:
        """Do nothing: there is no server."""

    def make_swappable(self) -> Callable[[], None]:
        def swap() -> None:
            self._lead_to("second" if self.path.readlink().name == "first" else "first")

        return swap


class TestConformance(DirectoryCase, conformance.ConformanceSuite):
    pass


class TestClaims(DirectoryCase, conformance_claims.ClaimsConformance):
    pass
