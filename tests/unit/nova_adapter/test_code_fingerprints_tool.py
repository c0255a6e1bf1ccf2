# SPDX-License-Identifier: Apache-2.0
"""The fingerprints that are made of a release's wheel are those that its code is known by."""

from __future__ import annotations

import importlib
import io
import pathlib
import zipfile

import testtools
from nova.db.main import api as main_db

from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import replaced_code
from nova_nodb_scheduler.nova_adapter.reads import prepared_requests
from nova_nodb_scheduler.placement_adapter import known_functions
from tools import code_fingerprints

_NOVAS = (
    "nova",
    "nova.db.main.api",
    "nova.db.main.models",
    "nova.objects.compute_node",
    "nova.scheduler.request_filter",
    "nova.scheduler.utils",
)


def wheel(*modules: str, instead: tuple[str, str] = ("", "")) -> code_fingerprints.Release:
    """Return the installed sources of modules as a wheel has them, with one text for another."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in modules:
            path = pathlib.Path(str(importlib.import_module(name).__file__))
            inside = f"{name.replace('.', '/')}{'/__init__' * (path.stem == '__init__')}.py"
            archive.writestr(inside, path.read_text().replace(*instead))
    return code_fingerprints.Release(made)


class ToolTest(testtools.TestCase):
    def assert_known(self, known: dict[str, frozenset[str | None]], found: object) -> None:
        assert isinstance(found, dict)
        self.assertEqual(known.keys(), found.keys())
        for name, fingerprints in found.items():
            self.assertEqual(1, len(fingerprints), name)
            self.assertIn(fingerprints[0], known[name], name)

    def test_all_of_the_installed_releases_is_in_the_tables(self) -> None:
        placements = wheel("placement", *known_functions.KNOWN)
        made = code_fingerprints.tables([wheel(*_NOVAS), placements])
        self.assert_known(dict(replaced_code.KNOWN), made["replaced_code.KNOWN"])
        self.assert_known(dict(prepared_requests.KNOWN), made["prepared_requests.KNOWN"])
        found = made["known_functions.KNOWN"]
        self.assertEqual(known_functions.KNOWN.keys(), found.keys())
        for module, definitions in known_functions.KNOWN.items():
            self.assert_known(dict(definitions), found[module])

    def test_what_differs_between_releases_has_a_fingerprint_of_each(self) -> None:
        other = wheel(*_NOVAS, instead=("def compute_node_get(", "def compute_node_get(_planted, "))
        made = code_fingerprints.tables([wheel(*_NOVAS), other])
        assert isinstance(made["replaced_code.KNOWN"], dict)
        counts = {name: len(found) for name, found in made["replaced_code.KNOWN"].items()}
        name = f"{main_db.__name__}.compute_node_get"
        self.assertEqual({name: 2}, {name: each for name, each in counts.items() if each > 1})
        self.assertEqual({"replaced_code.KNOWN", "prepared_requests.KNOWN"}, made.keys())

    def test_a_module_that_a_release_does_not_have_is_named(self) -> None:
        self.assertRaises(LookupError, code_fingerprints.tables, [wheel("nova")])
