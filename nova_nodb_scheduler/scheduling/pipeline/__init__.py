# SPDX-License-Identifier: Apache-2.0
"""A request to ranked hosts, and these to placed servers: contract, steps, engine, placing.
Called by the adapter and the simulator. Imports facts' results: frame and reservations.
"""
