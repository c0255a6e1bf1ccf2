# SPDX-License-Identifier: Apache-2.0
"""Placement's own application with one thing replaced: how allocations are written.
Runs in Placement's process, which names ``placement_adapter.wsgi:application``; nothing of the
plugin imports it but guard_header. Imports placement, errors, tree_conditions, and nothing of nova.
"""
