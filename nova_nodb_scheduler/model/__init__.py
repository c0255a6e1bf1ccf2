# SPDX-License-Identifier: Apache-2.0
"""Frozen values that every layer speaks: records, namespaces, claims, requests.
Used by all packages; without I/O.
Imports errors only.
"""
