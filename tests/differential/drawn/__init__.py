# SPDX-License-Identifier: Apache-2.0
"""What is drawn: clusters, nodes, settings and requests, with odd values."""
