# SPDX-License-Identifier: Apache-2.0
"""How claims end: settled by an authority's record, expired, or proved to be nobody's.
Called by the claim duty of a scheduler worker, once before a refusal, and by the simulator.
Imports claims, records and replication; nothing here imports it.
"""
