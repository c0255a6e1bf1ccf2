# SPDX-License-Identifier: Apache-2.0
"""The benchmark: stock Nova and the plugin on the same made clouds, and the core alone."""
