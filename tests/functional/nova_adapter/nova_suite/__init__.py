# SPDX-License-Identifier: Apache-2.0
"""What checks Nova's own suite runs with the plugin."""
