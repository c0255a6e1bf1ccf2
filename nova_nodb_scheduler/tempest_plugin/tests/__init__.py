# SPDX-License-Identifier: Apache-2.0
"""The scenarios; each class has its hosts for itself while it runs."""
