# SPDX-License-Identifier: Apache-2.0
"""The order of requests that wait for room, and what wakes which of them. No I/O.
Called by the adapter and the simulator through wait_queues; imports the model.
Layers: wait_queues > wake_ups > walks, request_book > order > values.
"""
