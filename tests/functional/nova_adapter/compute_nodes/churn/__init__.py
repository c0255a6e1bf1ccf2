# SPDX-License-Identifier: Apache-2.0
"""A cell that is retired, churned by conductors and brought back, compared with what they told.

Called by nothing else; :mod:`.nova_calls` is a process of Nova's, :mod:`.ledger` what was
acknowledged, :mod:`.churning` what is drawn.
"""
