# SPDX-License-Identifier: Apache-2.0
"""Placement's own application with one thing replaced: how allocations are written.
Runs in Placement's process, which names ``placement_adapter.wsgi:application``; the plugin
imports guard_header and tree_conditions of it, which know nothing of Placement, and nothing else.
Imports placement, errors, and nothing of nova.
"""
