# SPDX-License-Identifier: Apache-2.0
"""Made clusters and workloads, several schedulers over one synchronizer, and faults.

The plugin's own pipeline, claims and drivers, without Nova. Called by nova-nodb-simulate, and in
parts by tests/engine_faults. In here outcome imports run, run schedulers, and these scenario.
"""
