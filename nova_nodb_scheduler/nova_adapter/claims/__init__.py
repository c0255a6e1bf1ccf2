# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts that no decision in memory makes: a conductor's, and those of Nova's own path.
Called by decisions, the conductor's manager and the assembly; imports conversion, placement.
"""
