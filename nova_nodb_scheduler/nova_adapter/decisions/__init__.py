# SPDX-License-Identifier: Apache-2.0
"""A RequestSpec becomes Selections: planned over columns, claimed, allocated, answered; and what
a worker does to end claims. Called by the scheduler manager and the runtime; imports claims,
reads, placement, orphans and conversion.
"""
