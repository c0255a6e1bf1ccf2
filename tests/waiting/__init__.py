# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room, on a real control plane: tools/waiting.sh.

40 servers are asked for where there is room for 24. The others wait; then servers are deleted, and
each that waits gets its room, in order. Services may be killed meanwhile. What is said of a round
is read from Placement's and Nova's tables, with no code of the plugin.
"""
