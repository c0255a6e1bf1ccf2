# SPDX-License-Identifier: Apache-2.0
"""The mirror of Placement's providers: read, published, swept, hinted at, proved to be current.
Called by decisions, claims and the assembly; imports the synchronizer and reporting's tables.
"""
