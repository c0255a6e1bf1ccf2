# SPDX-License-Identifier: Apache-2.0
"""Measures what requests that wait cost, with the engine beside them, and ways to choose hosts."""
