# SPDX-License-Identifier: Apache-2.0
"""Cases by the million for what others may send: python -m tests.fuzz TARGET."""
