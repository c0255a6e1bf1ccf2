# SPDX-License-Identifier: Apache-2.0
"""Allocations whose server will never be: found, told, and those of the dead ended."""
