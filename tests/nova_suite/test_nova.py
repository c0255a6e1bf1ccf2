# SPDX-License-Identifier: Apache-2.0
"""Load the Nova tests that ``NOVA_SUITE_SELECTION`` (a file's path) lists.

Without that variable there are none: the project's own test runs discover this
module too, and must neither import Nova nor start its threading mode.
"""

import importlib
import os
import pathlib
import unittest
from typing import Any

import testtools

from tests.nova_suite import selection

SELECTION_VARIABLE = "NOVA_SUITE_SELECTION"
PLUGIN_VARIABLE = "NOVA_SUITE_PLUGIN"
PATIENCE_VARIABLE = "NOVA_SUITE_PATIENCE"
#: ``store`` or ``retired``: records answer for compute nodes, with the plugin or without.
NODES_VARIABLE = "NOVA_SUITE_COMPUTE_NODES"
#: ``nodb_queue``: the driver that lets requests wait.
DRIVER_VARIABLE = "NOVA_SUITE_DRIVER"
#: Seconds that every server may wait for room with that driver; without it none waits.
WAIT_VARIABLE = "NOVA_SUITE_WAIT"
#: Nova's own: whether services run on threads, not on eventlet.
NATIVE_THREADS_VARIABLE = "OS_NOVA_DISABLE_EVENTLET_PATCHING"


def load_tests(
    loader: unittest.TestLoader, standard_tests: unittest.TestSuite, pattern: str | None
) -> unittest.TestSuite:
    """Return the selected tests, under the plugin where ``NOVA_SUITE_PLUGIN`` is set."""
    path = os.environ.get(SELECTION_VARIABLE)
    if not path:
        return unittest.TestSuite()
    names = selection.read(pathlib.Path(path))
    # Nova's test packages choose the threading mode when they are imported, and
    # must do so before anything else of Nova or oslo.messaging is.
    for package in sorted({".".join(name.split(".")[:3]) for name in names}):
        importlib.import_module(package)
    native = os.environ.get(NATIVE_THREADS_VARIABLE) == "true"
    importlib.import_module("tests.nova_suite.economy.databases").install(native)
    idling = importlib.import_module("tests.nova_suite.economy.idling")
    if native:
        idling.install()
    if not any(name.startswith("nova.tests.unit.") for name in names):
        idling.be_quiet()
    _keep_thread_pools()
    _be_patient(int(os.environ.get(PATIENCE_VARIABLE, "1")))
    mode = os.environ.get(NODES_VARIABLE, "mirror")
    if mode != "mirror":
        # Behind the plugin's own at a test's end, which compares what it published with the rows.
        importlib.import_module("tests.nova_suite.modes.served_nodes").install(mode)
    if os.environ.get(PLUGIN_VARIABLE):
        fixture = importlib.import_module("tests.nova_suite.fixture")
        fixture.install()
        if any(name.startswith("nova.tests.unit.") for name in names):
            importlib.import_module("tests.nova_suite.unit").install()
    excluded = selection.left_out(
        bool(os.environ.get(PLUGIN_VARIABLE)),
        mode,
        may_wait=os.environ.get(DRIVER_VARIABLE) == "nodb_queue",
        waits=bool(os.environ.get(WAIT_VARIABLE)),
    )
    tests = unittest.TestSuite(loader.loadTestsFromName(name) for name in names)
    return unittest.TestSuite(
        test for test in testtools.iterate_tests(tests) if not selection.covers(excluded, test.id())
    )


def _keep_thread_pools() -> None:
    """Leave out what ends all thread pools of a process for good, for as long as it lives.

    Nova's ServiceFixture does so until its test ends. But services end in a thread that
    nobody waits for, and on a machine with other work on it one that comes behind its test
    takes the pools from all that follow. Before Nova 34 there is no such end.
    """
    try:
        factory: Any = importlib.import_module("nova.thread_pool_factory")
    except ImportError:
        return
    if hasattr(factory, "shutdown_all_executors"):
        factory.shutdown_all_executors = lambda: None


def _be_patient(factor: int) -> None:
    """Have Nova's tests poll a server's state more often before they give up.

    They allow 5 seconds, which a machine with other work on it exceeds, with
    the plugin or without. What they expect to see stays as it is.
    """
    if factor == 1:
        return
    helpers = importlib.import_module("nova.tests.functional.integrated_helpers")
    original = helpers.InstanceHelperMixin._wait_for_server_parameter

    def wait(
        self: Any, server: Any, expected: Any, max_retries: int = 10, *args: Any, **kwargs: Any
    ) -> Any:
        return original(self, server, expected, max_retries * factor, *args, **kwargs)

    helpers.InstanceHelperMixin._wait_for_server_parameter = wait
