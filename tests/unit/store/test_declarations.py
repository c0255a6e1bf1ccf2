# SPDX-License-Identifier: Apache-2.0
"""A namespace is an entry point and nothing else, whoever's it is."""

import itertools
import pathlib
import sys

import fixtures
import testtools
from stevedore import _cache

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.store import declarations, host_state_store
from nova_nodb_scheduler.wire import codec
from tests.unit.store import store_samples

CINDER_POOLS = """
from nova_nodb_scheduler.model import namespaces

CINDER_POOLS = namespaces.Namespace(
    name="cinder_pools",
    owner="cinder",
    schema=namespaces.SchemaVersion(1, 0),
    columns=(
        namespaces.Column(
            "free_capacity_gb", namespaces.Kind.FLOAT, ("capabilities", "free_capacity_gb"), 0.0
        ),
        namespaces.Column("backend", namespaces.Kind.CATEGORY, ("backend",), ""),
    ),
    indexes=(namespaces.Index("backend", (("backend",),)),),
)
SAME_NAME = namespaces.Namespace("cinder_pools", "other", namespaces.SchemaVersion(1, 0))
A_POOLS = namespaces.Namespace("a_pools", "cinder", namespaces.SchemaVersion(1, 0))
NOT_ONE = {"name": "cinder_pools"}
"""

_serial = itertools.count()


class TestDeclarations(testtools.TestCase):
    def setUp(self):
        super().setUp()
        # Only what a test installs, whatever this environment has: the modules
        # that are needed are imported already.
        self.useFixture(fixtures.MonkeyPatch("sys.path", []))
        # stevedore remembers what it found: in the process, and below ~/.cache.
        self.useFixture(
            fixtures.MonkeyPatch("stevedore.extension.ExtensionManager.ENTRY_POINT_CACHE", {})
        )
        found = _cache.Cache(cache_dir=self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("stevedore._cache._c", found))

    def install(self, **entry_points):
        """Install a package that declares these entry points: ``name="ATTRIBUTE"``."""
        module = f"toy_cinder_{next(_serial)}"
        site = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (site / f"{module}.py").write_text(CINDER_POOLS)
        metadata = site / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n"
        )
        lines = "\n".join(f"{name} = {module}:{what}" for name, what in entry_points.items())
        (metadata / "entry_points.txt").write_text(f"[nova_nodb_scheduler.namespace]\n{lines}\n")
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(site), *sys.path]))

    def test_a_toy_namespace_declared_by_entry_point_alone_feeds_a_filter(self):
        self.install(cinder_pools="CINDER_POOLS")
        store = host_state_store.HostStateStore(declarations.load_namespaces(), codec.decode_state)
        for key, backend, free_gb in (
            ("pool-a", "ceph", 10.5),
            ("pool-b", "lvm", 500),
            ("pool-c", "ceph", None),
            ("pool-d", "lvm", 80),
        ):
            state = {"backend": backend, "capabilities": {"free_capacity_gb": free_gb}}
            store.apply(store_samples.change(key, 1, state, namespace="cinder_pools"))

        pools = store.snapshot().namespace("cinder_pools")
        fits = pools.column("free_capacity_gb") >= 50.0
        fits &= pools.column("backend") == pools.vocabulary("backend").code("lvm")
        chosen = [key for key, fit in zip(pools.row_keys(), fits, strict=True) if fit]

        self.assertEqual(["pool-b", "pool-d"], sorted(chosen))
        self.assertEqual(("pool-a", "pool-c"), pools.lookup("backend", "ceph"))

    def test_a_name_declared_by_two_packages_is_refused_naming_both(self):
        self.install(cinder_pools="CINDER_POOLS")
        self.install(other_pools="SAME_NAME")

        error = self.assertRaises(errors.ConfigurationError, declarations.load_namespaces)

        self.assertIn("cinder_pools = toy_cinder_", str(error))
        self.assertIn("other_pools = toy_cinder_", str(error))

    def test_what_is_no_namespace_is_refused_by_its_entry_point(self):
        self.install(odd="NOT_ONE")

        error = self.assertRaises(errors.ConfigurationError, declarations.load_namespaces)

        self.assertRegex(str(error), "odd = toy_cinder_.*:NOT_ONE")
        self.assertIn("names a dict", str(error))

    def test_one_object_declared_twice_is_one_namespace(self):
        self.install(cinder_pools="CINDER_POOLS", again="CINDER_POOLS")

        self.assertEqual(1, len(declarations.load_namespaces()))

    def test_what_cannot_be_loaded_is_refused_by_its_entry_point(self):
        self.install(absent="NO_SUCH_NAME")

        error = self.assertRaises(errors.ConfigurationError, declarations.load_namespaces)

        self.assertIn("absent", str(error))
        self.assertIn("NO_SUCH_NAME", str(error))

    def test_namespaces_come_sorted_by_name(self):
        self.install(zz="A_POOLS", aa="CINDER_POOLS")

        names = [namespace.name for namespace in declarations.load_namespaces()]

        self.assertEqual(["a_pools", "cinder_pools"], names)

    def test_one_that_is_needed_and_not_declared_is_named_with_its_remedy(self):
        self.install(cinder_pools="CINDER_POOLS")
        needed = [
            namespaces.Namespace(name, "cinder", namespaces.SchemaVersion(1, 0))
            for name in ("cinder_pools", "new_pools")
        ]

        error = self.assertRaises(errors.ConfigurationError, declarations.load_namespaces, needed)

        self.assertIn("do not declare new_pools,", str(error))
        self.assertIn("Install nova-nodb-scheduler anew", str(error))
        self.assertEqual(1, len(declarations.load_namespaces(needed[:1])))
