# SPDX-License-Identifier: Apache-2.0
"""What Prometheus makes of the metrics: alerts fired by real faults, and the board."""

# Chooses native threads before any module of Nova's is imported.
import tests.functional.nova_adapter  # noqa: F401
