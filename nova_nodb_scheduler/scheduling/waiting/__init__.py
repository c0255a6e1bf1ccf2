# SPDX-License-Identifier: Apache-2.0
"""The order of requests that wait for room, and what wakes which of them. No I/O.
Called by the adapter and the simulator; imports the model.
"""
