# SPDX-License-Identifier: Apache-2.0
"""A Placement whose functions are not known is not guarded, and says which and what to do."""

import importlib
import inspect
import re
from unittest import mock

import testtools
from placement.objects import allocation, reshaper

from nova_nodb_scheduler import code_fingerprints, errors
from nova_nodb_scheduler.placement_adapter import guard_switch, known_functions


class KnownFunctionsTest(testtools.TestCase):
    def test_all_of_the_installed_release_is_known(self) -> None:
        known_functions.check()

    def test_what_is_not_known_is_named_with_what_to_do(self) -> None:
        known = {
            "placement.objects.reshaper": {"reshape": frozenset({"0123456789abcdef"})},
        }
        with mock.patch.object(known_functions, "KNOWN", known):
            error = self.assertRaises(errors.UnsupportedPlacement, known_functions.check)
        text = str(error)
        self.assertIn("placement.objects.reshaper.reshape", text)
        self.assertIn(known_functions.release(), text)
        self.assertIn("13 to 16", text)
        self.assertIn("Name placement.wsgi.api:application to the WSGI server", text)

    def test_nothing_is_replaced_where_something_is_not_known(self) -> None:
        own = allocation.replace_all
        known = {
            **known_functions.KNOWN,
            "placement.objects.reshaper": {"reshape": frozenset({None})},
        }
        with mock.patch.object(known_functions, "KNOWN", known):
            self.assertRaises(errors.UnsupportedPlacement, guard_switch.switch_on)
        self.assertIs(own, allocation.replace_all)

    def test_all_that_is_replaced_has_a_fingerprint(self) -> None:
        self.addCleanup(guard_switch.switch_off)
        guard_switch.switch_on()
        for module, name, _own in guard_switch._replaced:
            self.assertIn(name, known_functions.KNOWN[module.__name__])

    def test_what_is_switched_off_is_placements_own_again(self) -> None:
        before = (allocation.replace_all, reshaper.reshape)
        guard_switch.switch_on()
        guard_switch.switch_on()
        self.assertIsNot(before[0], allocation.replace_all)
        guard_switch.switch_off()
        self.assertEqual(before, (allocation.replace_all, reshaper.reshape))

    def test_a_changed_line_of_each_known_definition_is_seen(self) -> None:
        for module_name, definitions in known_functions.KNOWN.items():
            source = inspect.getsource(importlib.import_module(module_name))
            present = code_fingerprints.of_definitions(source, definitions)
            for name in [each for each, found in present.items() if found is not None]:
                changed = re.sub(
                    rf"^(def|class) {name}\(", rf"\1 {name}(_planted, ", source, count=1, flags=re.M
                )
                found = code_fingerprints.of_definitions(changed, definitions)
                self.assertNotIn(found[name], definitions[name], name)
                self.assertEqual({**present, name: found[name]}, found)
