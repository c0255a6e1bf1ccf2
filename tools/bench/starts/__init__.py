# SPDX-License-Identifier: Apache-2.0
"""What a scheduler's start costs before it decides: from the back end, and from a checkpoint.
Called by the benchmark's command; imports tools.bench.clouds.
"""
