# SPDX-License-Identifier: Apache-2.0
"""Nova's objects and settings as values of the core, and the core's values as Nova's objects.
Called from everywhere in the adapter; no I/O; imports none of the adapter's other packages.
"""
