# SPDX-License-Identifier: Apache-2.0
"""Made clouds and what is asked of them: the same for a number of hosts and a seed, everywhere.

Imported by all of the benchmark; of it, imports tools.bench.control_plane alone.
"""
