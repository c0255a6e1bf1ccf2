# SPDX-License-Identifier: Apache-2.0
"""Tests in processes of their own, and what runs there."""
