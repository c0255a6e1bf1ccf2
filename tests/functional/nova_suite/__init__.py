# SPDX-License-Identifier: Apache-2.0
"""What checks Nova's own suite runs with the plugin."""

# Chooses native threads before any module of Nova's is imported.
import tests.functional.nova_adapter  # noqa: F401
