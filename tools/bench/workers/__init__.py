# SPDX-License-Identifier: Apache-2.0
"""How much one scheduler worker decides with threads, and several workers with fewer.

A command of its own; imports tools.bench.
"""
