# SPDX-License-Identifier: Apache-2.0
"""Fixtures and the driver conformance suite, shipped for driver authors."""
