# SPDX-License-Identifier: Apache-2.0
"""Allocations whose server will never be: found, told, and those of dead processes deleted.
Called by a scheduler worker and by commands; imports placement and reporting's tables.
"""
