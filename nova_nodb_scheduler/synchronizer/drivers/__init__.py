# SPDX-License-Identifier: Apache-2.0
"""One module or package per back end; drivers do not know one another."""
