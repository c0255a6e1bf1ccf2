# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room, in Nova's processes: who is told of what becomes of them.

Conductors and schedulers call it where they moved a request on; it imports nothing of the
rest of the adapter.
"""
