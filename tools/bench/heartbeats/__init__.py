# SPDX-License-Identifier: Apache-2.0
"""What heartbeats of compute services cost."""
