# SPDX-License-Identifier: Apache-2.0
"""Conductors that write heartbeats to journals, as they are configured and started."""
