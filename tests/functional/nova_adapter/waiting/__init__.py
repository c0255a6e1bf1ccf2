# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room, in Nova services."""
