# SPDX-License-Identifier: Apache-2.0
"""Nova's own tests, run with and without the plugin, as its peer suite.

``tools/nova_functional.sh`` is the entrance. ``test_nova`` names Nova's tests to
stestr, ``fixture`` runs them with the plugin, ``results`` files what came out and
compares it with what stock Nova gives (``expected/``). ``selections/`` holds the
lists of tests that have a name.
"""
