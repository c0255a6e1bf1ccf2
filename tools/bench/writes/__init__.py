# SPDX-License-Identifier: Apache-2.0
"""Writes of allocations by themselves: Placement's floor, and a scheduler's queue of calls."""
