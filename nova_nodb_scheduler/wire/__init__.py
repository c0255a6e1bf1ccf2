# SPDX-License-Identifier: Apache-2.0
"""What travels: records as bytes and back, and the versioned objects of the RPC API.
Called by whoever writes or reads records, and by both sides of the RPC API.
Imports model and errors only; knows nothing of back ends.
"""
