# SPDX-License-Identifier: Apache-2.0
"""Fuzzing of what strangers can send: ``python -m tests.fuzz TARGET --cases N --seed N``."""
