# SPDX-License-Identifier: Apache-2.0
"""Run each of Nova's tests with the plugin: real reporters, SQLite, real replicator.

``install()`` makes Nova's base class use :class:`NodbFixture` in every test that
has databases, after they exist and before any service starts. What a deployment
does by ``[oslo_messaging_notifications] driver`` is done explicitly: Nova's own
fixtures replace the notifiers, and all services share the process.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from typing import Any

import fixtures
from nova import test as nova_test
from oslo_config import cfg

from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter import assembly, objects, reporting
from nova_nodb_scheduler.synchronizer import contract, loader
from tests.nova_suite import cells, feed, reporters, schedulers

CONF = cfg.CONF
RESULTS_VARIABLE = "NOVA_SUITE_RESULTS"


def install() -> None:
    """Have every test with databases use the plugin; once per process."""
    nodb.register_opts(CONF)
    # Once and for good: Nova's own clean-up leaves registered classes in place.
    # Without a reporter installed they do nothing but what Nova's do.
    objects.register()
    template = _Template()
    original = nova_test.TestCase.setUp

    def set_up(test: Any) -> None:
        original(test)
        if test.USES_DB:
            test.useFixture(NodbFixture(test, template))

    nova_test.TestCase.setUp = set_up


class _Template:
    """An empty database of the plugin, made once: the migrations take longer."""

    def __init__(self) -> None:
        self._path = pathlib.Path(tempfile.mkdtemp(prefix="nodb-suite-")) / "empty.sqlite"

    def copy_to(self, path: pathlib.Path) -> None:
        """Put a migrated, empty database there."""
        if not self._path.exists():
            synchronizer = _synchronizer(self._path)
            synchronizer.open()
            synchronizer.close()
        for suffix in ("", "-wal"):
            source = self._path.with_name(self._path.name + suffix)
            if source.exists():
                shutil.copyfile(source, path.with_name(path.name + suffix))


def _synchronizer(path: pathlib.Path) -> contract.Synchronizer:
    """Return the SQL driver on a file, by the options that a scheduler reads too."""
    driver = loader.load_class("sqlalchemy")
    driver.register_opts(CONF)
    CONF.set_override("connection", f"sqlite:///{path}", group="nodb_sqlalchemy")
    CONF.set_override("poll_interval_seconds", 0.01, group="nodb_sqlalchemy")
    CONF.set_override("synchronizer", "sqlalchemy", group=nodb.GROUP)
    return loader.load("sqlalchemy", CONF)


class NodbFixture(fixtures.Fixture):
    """The plugin of one test."""

    def __init__(self, test: Any, template: _Template) -> None:
        super().__init__()
        self._test = test
        self._template = template

    def _setUp(self) -> None:
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nodb.sqlite"
        self._template.copy_to(path)
        synchronizer = _synchronizer(path)
        synchronizer.open()
        self.addCleanup(synchronizer.close)

        plugin = assembly.Plugin(CONF)
        assembly.install(plugin)
        self.addCleanup(assembly.install, None)
        process_scopes = cells.SuiteScopes(CONF)
        self._reporters = reporters.Reporters(
            synchronizer, process_scopes, process_scopes.all_cells()
        )
        self._waits = feed.FeedWaits(self._test.id())
        self.addCleanup(self._waits.file, pathlib.Path(os.environ[RESULTS_VARIABLE]))
        self.addCleanup(self._reporters.stop)
        self._reporters.start()
        reporting.install(self._reporters, process_scopes)
        self.addCleanup(reporting.install, None, None)
        self.useFixture(schedulers.SchedulersFixture(self._reporters, self._waits))
        # The first to run, when the test's services are gone.
        self.addCleanup(lambda: self._waits.add_missed(self._reporters.missed()))
