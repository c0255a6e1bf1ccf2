# SPDX-License-Identifier: Apache-2.0
"""Host states in memory: namespaces of columns and lazily decoded records."""
