# SPDX-License-Identifier: Apache-2.0
"""Processes that the benchmark commands by JSON lines: schedulers, conductors, callers.

Started by the measurements as main modules; each begins as Nova's own would.
"""
