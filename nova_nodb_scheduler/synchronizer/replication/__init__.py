# SPDX-License-Identifier: Apache-2.0
"""The feed of a back end into a store: snapshot, follow, compare, heal.
Called by who runs a scheduler worker (nova_adapter, simulator) and by the claimer's views.
Imports the contract, scheduling's namespaces, store, wire and model; no other package here.
"""
