# SPDX-License-Identifier: Apache-2.0
"""Frozen values that every layer speaks: records, namespaces, claims."""
