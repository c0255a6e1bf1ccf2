# SPDX-License-Identifier: Apache-2.0
"""Whole sequences of calls, told to stock Nova and to two conductors whose records answer.

Called by nothing else; :mod:`.cells` is what is told, :mod:`.calls` what it is told.
"""
