# SPDX-License-Identifier: Apache-2.0
"""Migrations that add: they may run while older services do."""
