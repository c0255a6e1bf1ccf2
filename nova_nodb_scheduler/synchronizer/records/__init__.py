# SPDX-License-Identifier: Apache-2.0
"""Writing records by compare-and-set: an owner's publisher, the record editor, leases,
and rings of heartbeats.
Called by claims and settlement, by reporters and by whoever takes a lease.
Imports the contract, scheduling's namespaces, wire and model; no other package here.
"""
