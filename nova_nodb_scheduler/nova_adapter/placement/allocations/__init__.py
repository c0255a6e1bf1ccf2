# SPDX-License-Identifier: Apache-2.0
"""Allocations of new servers in Placement: written, batched, read back, verified, taken away.
Called by decisions, claims and orphans; imports placement.mirror for the watch on writes.
"""
