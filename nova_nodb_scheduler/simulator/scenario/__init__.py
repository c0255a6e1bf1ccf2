# SPDX-License-Identifier: Apache-2.0
"""What a run is asked to be: hosts, workload, faults by their time, strategy, back end, clock.
Frozen values, made by the command or a test; imported by all of the simulator, imports none.
"""
