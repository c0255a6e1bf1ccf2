# SPDX-License-Identifier: Apache-2.0
"""Hosts as columns: one row a compute node, and what each column is made of.
The facts fill it, filters and weighers read it. Imports nothing else of scheduling.
"""
