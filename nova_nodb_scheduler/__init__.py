# SPDX-License-Identifier: Apache-2.0
"""Nova scheduling from memory: host states kept current by a synchronizer."""
