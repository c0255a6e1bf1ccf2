# SPDX-License-Identifier: Apache-2.0
"""The claim protocol: capacity promised among schedulers, by one record per host or group.
Called by who decides (nova_adapter, simulator), through scheduling's Claimer protocol.
Imports records and replication beside it, never settlement.
"""
