# SPDX-License-Identifier: Apache-2.0
"""Made clusters and workloads, several schedulers over one synchronizer, and faults."""
