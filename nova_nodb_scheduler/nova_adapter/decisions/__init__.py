# SPDX-License-Identifier: Apache-2.0
"""A RequestSpec becomes Selections: planned over columns, claimed, allocated, answered.
Called by the scheduler manager; imports claims, reads, placement, orphans and conversion.
"""
