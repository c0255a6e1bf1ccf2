# SPDX-License-Identifier: Apache-2.0
"""What travels: changes as bytes, and the versioned objects of the RPC API."""
