# SPDX-License-Identifier: Apache-2.0
"""How host states travel: the driver contract and everything built on it."""
