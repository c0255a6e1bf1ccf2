# SPDX-License-Identifier: Apache-2.0
"""What Nova's tests need not pay for in each test: tables, connections, idle looks, debug lines."""
