# SPDX-License-Identifier: Apache-2.0
"""Placement: its mirror in memory, and the writing of allocations.
Called by decisions, claims and orphans; imports reporting (Nova's tables) and the core.
"""
