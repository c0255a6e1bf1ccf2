# SPDX-License-Identifier: Apache-2.0
"""Console commands, and the WSGI module: what an operator starts by name.

Entry points stand in this folder; what they do in the ones below, of which commands and doctor
import upgrade_check, this imports overview, and all of them framework. May import everything.
"""
