# SPDX-License-Identifier: Apache-2.0
"""Modes of the plugin that a run of Nova's tests may be for, by variables of the environment.

Called by the fixture and the module of the tests; may import the plugin and Nova.
"""
