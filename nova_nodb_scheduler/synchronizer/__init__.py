# SPDX-License-Identifier: Apache-2.0
"""How host states travel: the driver contract and everything built on it.
Called by the adapter, the simulator and the commands, which load one driver for each process.
Imports scheduling, store, wire and model; nothing of Nova.
"""
