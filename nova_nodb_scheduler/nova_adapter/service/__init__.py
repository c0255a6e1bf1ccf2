# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker runs beside Nova: the feed, the gate of its requests, its answers.
Called by the managers, the RPC server and the assembly; imports decisions, claims and below.
"""
