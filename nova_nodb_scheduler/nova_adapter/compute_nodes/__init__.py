# SPDX-License-Identifier: Apache-2.0
"""Compute nodes as records: rows, and what Nova's database functions answer from them.
The layer below a mode in which the back end serves reads of ``compute_nodes``.
Imports Nova, reporting, scheduling and the synchronizer; nothing makes it yet.
"""
