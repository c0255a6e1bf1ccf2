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
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, nova_objects
from nova_nodb_scheduler.synchronizer import loader
from tests.nova_suite import (
    cells,
    conductors,
    endings,
    feed,
    reporters,
    schedulers,
    selection,
    unit,
)
from tests.nova_suite.modes import heartbeats, waiting

CONF = cfg.CONF
RESULTS_VARIABLE = "NOVA_SUITE_RESULTS"
DRIVER = "sqlalchemy"

#: Shorter than the defaults: tests do not wait for an operator's economy.
OVERRIDES: dict[str, dict[str, Any]] = {
    nodb.GROUP: {
        "synchronizer": DRIVER,
        "flush_interval_seconds": 0.02,
        "exit_flush_seconds": 10.0,
        "sweep_pause_seconds": 0.0,
        # What is to be proved is published when a request has come; see schedulers.py.
        "start_timeout_seconds": 0.0,
    },
}


def install() -> None:
    """Have every test with databases use the plugin; once per process."""
    nodb.register_opts(CONF)
    loader.load_class(DRIVER).register_opts(CONF)
    # Once and for good: Nova's own clean-up leaves registered classes in place.
    # Without a reporter installed they do nothing but what Nova's do.
    nova_objects.register()
    # Nova's fixtures replace it, and put back a plain function where it is inherited.
    lookup = nova_objects.HostMapping._get_by_host_from_db
    nova_objects.HostMapping._get_by_host_from_db = staticmethod(lookup)
    template = _Template()
    original = nova_test.TestCase.setUp

    def set_up(test: Any) -> None:
        original(test)
        if test.USES_DB:
            test.useFixture(NodbFixture(test, template))
        else:
            test.useFixture(unit.NoDatabaseFixture())

    nova_test.TestCase.setUp = set_up


class _Template:
    """An empty database of the plugin, made once: the migrations take longer."""

    def __init__(self) -> None:
        self._path = pathlib.Path(tempfile.mkdtemp(prefix="nodb-suite-")) / "empty.sqlite"

    def copy_to(self, path: pathlib.Path) -> None:
        """Put a migrated, empty database there, and configure it."""
        if not self._path.exists():
            self._configure(self._path)
            synchronizer = loader.load(DRIVER, CONF)
            synchronizer.open()
            synchronizer.close()
        for suffix in ("", "-wal"):
            source = self._path.with_name(self._path.name + suffix)
            if source.exists():
                shutil.copyfile(source, path.with_name(path.name + suffix))
        self._configure(path)

    @staticmethod
    def _configure(path: pathlib.Path) -> None:
        # Nova's ConfFixture takes overrides back at the end of each test.
        CONF.set_override("connection", f"sqlite:///{path}", group="nodb_sqlalchemy")


class NodbFixture(fixtures.Fixture):
    """The plugin of one test."""

    def __init__(self, test: Any, template: _Template) -> None:
        super().__init__()
        self._test = test
        self._test_id = str(test.id())
        self._template = template

    def _setUp(self) -> None:
        for group, options in OVERRIDES.items():
            for name, value in options.items():
                CONF.set_override(name, value, group)
        waiting.configure(CONF)
        if selection.covers(selection.decided_by_placement(), self._test_id):
            CONF.set_override("candidates", "placement", nodb.GROUP)
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nodb.sqlite"
        self._template.copy_to(path)
        plugin = assembly.Plugin(CONF)
        plugin.scopes = cells.SuiteScopes(CONF)
        plugin.check()
        assembly.install(plugin)
        self.addCleanup(assembly.install, None)
        synchronizer = plugin.make_synchronizer()
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        self._report(plugin, reporters.Reporters(plugin, synchronizer))

    def _report(self, plugin: assembly.Plugin, process: reporters.Reporters) -> None:
        """Start everything; it is stopped in the opposite order."""
        waits = feed.FeedWaits(self._test_id)
        self.addCleanup(waits.file, pathlib.Path(os.environ[RESULTS_VARIABLE]))
        self.addCleanup(process.stop)
        change_reporter.install(process, plugin.scopes)
        self.addCleanup(change_reporter.install, None, None)
        process.start()
        self.useFixture(heartbeats.HeartbeatsFixture(plugin, process.synchronizer))
        started = self.useFixture(schedulers.SchedulersFixture(process, waits))
        if os.environ[schedulers.MODE_VARIABLE] == "scheduler":
            self.useFixture(
                endings.EndingsFixture(self._test, plugin.scopes, process, started.runtimes, waits)
            )
            self.useFixture(conductors.ConductorsFixture(plugin, process, started, waits))
            self.useFixture(waiting.WaitingFixture(plugin))
        # The first to run at the end, when the test has stopped its services.
        self.addCleanup(lambda: waits.add_differences(process.differences()))
