# SPDX-License-Identifier: Apache-2.0
"""What each namespace of the store holds: its declaration, and its records read as facts.
Called by the store (digests) and by everybody who names a namespace. Imports the frame.
"""
