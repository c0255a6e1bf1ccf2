# SPDX-License-Identifier: Apache-2.0
"""What a scheduler knows of a cloud, with no Nova installed."""
