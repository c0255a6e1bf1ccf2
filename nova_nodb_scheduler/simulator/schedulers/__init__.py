# SPDX-License-Identifier: Apache-2.0
"""One scheduler in a process of its own: the plugin's pipeline, claims and feed, less Nova.
Started by simulator.run, to which it speaks through a pipe; imports simulator.scenario.
"""
