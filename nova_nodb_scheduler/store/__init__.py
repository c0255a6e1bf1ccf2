# SPDX-License-Identifier: Apache-2.0
"""Host states in memory: namespaces of columns and lazily decoded records.
Written by a replicator, read by whoever decides or answers, from snapshots.
Imports model and errors only; knows no namespace by name and does no I/O.
"""
