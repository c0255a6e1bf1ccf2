# SPDX-License-Identifier: Apache-2.0
"""What an operator sees: metrics, reports, comparisons."""
