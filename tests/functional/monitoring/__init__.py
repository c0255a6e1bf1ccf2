# SPDX-License-Identifier: Apache-2.0
"""What Prometheus makes of the metrics: alerts fired by real faults, and the board."""
