# SPDX-License-Identifier: Apache-2.0
"""Conductors, and computes' calls to them, that end in the midst of a request that may wait."""
