# SPDX-License-Identifier: Apache-2.0
"""Console commands, and the WSGI module: what an operator starts by name.

Entry points stand in this folder, what they do below: doctor imports upgrade_check, this and
commands import overview, and all of them framework. May import every other package.
"""
