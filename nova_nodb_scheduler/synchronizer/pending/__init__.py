# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room, as records that conductors and schedulers hand to one another.
Called by the adapter's conductor and queue worker, and by the simulator.
Imports records beside it, scheduling's namespaces and waiting, and the model; never claims.
"""
