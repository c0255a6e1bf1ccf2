# SPDX-License-Identifier: Apache-2.0
"""The documents name every built-in namespace: who writes it, and what it holds."""

import pathlib
import re

import testtools

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

DOCUMENTS = pathlib.Path(__file__).parents[3] / "doc" / "source"


class DocumentsTest(testtools.TestCase):
    def test_security_says_of_every_namespace_what_it_holds(self):
        text = (DOCUMENTS / "admin" / "security.rst").read_text()
        stored = text[text.index("**What is stored.**") : text.index("**Who may write.**")]

        named = re.findall(r"``([a-z_]+)``", stored)
        for namespace in known_namespaces.BUILT_IN:
            self.assertIn(namespace.name, named)

    def test_rpc_lists_owners_as_they_are_declared(self):
        text = (DOCUMENTS / "user" / "rpc.rst").read_text()
        table = text[text.index("**Who may write what.**") : text.index("**A batch**")]
        rows = re.findall(r"\* - ``([a-z]+)``\n     - (.*?)\n     - ", table, re.DOTALL)
        listed = {owner: set(re.findall(r"``([a-z_]+)``", cell)) for owner, cell in rows}

        declared = {}
        for namespace in known_namespaces.BUILT_IN:
            declared.setdefault(namespace.owner, set()).add(namespace.name)
        self.assertEqual(declared, listed)
