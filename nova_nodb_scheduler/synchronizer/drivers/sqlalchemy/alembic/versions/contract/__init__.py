# SPDX-License-Identifier: Apache-2.0
"""Migrations that remove: they run when no older service is left."""
