# SPDX-License-Identifier: Apache-2.0
"""Scenarios of scheduling for Tempest: what a cloud must hold whoever decides.

Found by Tempest through the entry point ``tempest.test_plugins``; nothing else imports it. Uses
the APIs of Nova and Placement alone, so it runs on a stock cloud, too.
"""
