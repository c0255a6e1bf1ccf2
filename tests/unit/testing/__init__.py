# SPDX-License-Identifier: Apache-2.0
"""Tests of what is shipped for authors of drivers."""
