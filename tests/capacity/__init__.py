# SPDX-License-Identifier: Apache-2.0
"""Several schedulers race for little room on a real control plane, again and again.

What became of each request, and what was ever given away, is read from Placement's and Nova's own
tables: nothing here asks the plugin.
"""
