# SPDX-License-Identifier: Apache-2.0
"""Faults of back ends and of schedulers, on every driver with its real engine."""
