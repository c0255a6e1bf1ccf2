# SPDX-License-Identifier: Apache-2.0
"""Compute nodes as records: rows, and what Nova's database functions answer from them.
Whose word counts for a cell's compute nodes, Nova's table or the back end, is its mode; a
process is configured for one, and goes by it (``serving``). Imports Nova, reporting, scheduling
and the synchronizer.
"""
