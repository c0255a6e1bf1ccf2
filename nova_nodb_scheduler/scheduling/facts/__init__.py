# SPDX-License-Identifier: Apache-2.0
"""Records to columns: the facts of hosts from a snapshot, and the frame kept equal to it.
Called before each decision. Imports reservations, namespaces and frame.
"""
