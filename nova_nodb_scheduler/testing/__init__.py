# SPDX-License-Identifier: Apache-2.0
"""Fixtures of real servers, faults and the conformance suites, shipped for driver authors.

Called by tests, of this project and of others, and by the benchmark. Imports the synchronizer and
below; nothing of Nova, and no driver.
"""
