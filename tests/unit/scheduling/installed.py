# SPDX-License-Identifier: Apache-2.0
"""A package that is installed for the length of a test."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Mapping

import fixtures


class InstalledPackage(fixtures.Fixture):  # type: ignore[misc]
    """One module and its entry points, in a directory of its own.

    :param module: its name, also the package's
    :param text: of the module
    :param entry_points: group -> lines as in setup.cfg
    """

    def __init__(self, module: str, text: str, entry_points: Mapping[str, str]) -> None:
        super().__init__()
        self.module, self.text, self.entry_points = module, text, entry_points

    def _setUp(self) -> None:
        site = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (site / f"{self.module}.py").write_text(self.text)
        metadata = site / f"{self.module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {self.module}\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(
            "".join(f"[{group}]\n{lines.strip()}\n" for group, lines in self.entry_points.items())
        )
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(site), *sys.path]))
        # A process reads the installed packages' entry points once.
        self.useFixture(
            fixtures.MonkeyPatch("stevedore.extension.ExtensionManager.ENTRY_POINT_CACHE", {})
        )
        self.addCleanup(sys.modules.pop, self.module, None)
        importlib.invalidate_caches()
