# SPDX-License-Identifier: Apache-2.0
"""Configuration options, one module a group."""
