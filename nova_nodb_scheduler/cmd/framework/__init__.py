# SPDX-License-Identifier: Apache-2.0
"""What every command stands on: its configuration, its end, its output, and questions that are
asked in bounded time. Called by the commands and checks beside it; knows none of them.
"""
