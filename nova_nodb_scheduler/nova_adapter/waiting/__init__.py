# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room instead of ending in NoValidHost: conductors and APIs put
them there, schedulers wake them.
"""
