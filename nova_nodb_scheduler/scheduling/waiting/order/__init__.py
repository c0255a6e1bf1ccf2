# SPDX-License-Identifier: Apache-2.0
"""Requests filed so that whose turn is next is found without a look at all of them.
Used by the modules of waiting alone; imports their values.
"""
