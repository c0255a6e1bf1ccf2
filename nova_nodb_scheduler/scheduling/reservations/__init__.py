# SPDX-License-Identifier: Apache-2.0
"""What this scheduler reserved, and what others claimed, beyond what hosts report.
Called by facts, pipeline and the claims' ledger. Imports namespaces and frame.
"""
