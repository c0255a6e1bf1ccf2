# SPDX-License-Identifier: Apache-2.0
"""Migration scripts of the SQL driver; run by :mod:`..migration`."""
