# SPDX-License-Identifier: Apache-2.0
"""What a scheduler does about requests that wait for room: it follows their records, finds
whom an event helps, and grants. Called by nova_adapter.waiting and by the simulator.
"""
