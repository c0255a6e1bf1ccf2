# SPDX-License-Identifier: Apache-2.0
"""What rounds gave: tables, the rounds that are kept, and the seeds that found something."""
