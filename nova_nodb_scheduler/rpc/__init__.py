# SPDX-License-Identifier: Apache-2.0
"""The scheduler's own RPC API: client and server endpoint."""
