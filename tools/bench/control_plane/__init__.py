# SPDX-License-Identifier: Apache-2.0
"""MariaDB and Placement of the benchmark: their files, processes and databases.

Called by the measurements; imports tools.stack.
"""
