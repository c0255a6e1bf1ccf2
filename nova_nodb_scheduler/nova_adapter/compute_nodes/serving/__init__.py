# SPDX-License-Identifier: Apache-2.0
"""What a process of Nova's does by its mode: serves Nova's functions, or guards them.

May import all that answers for compute nodes; nothing of that imports it.
"""
