# SPDX-License-Identifier: Apache-2.0
"""One run: the world that asks schedulers, runs made hosts, lets things fail, keeps the truth.
Called by simulator.campaign; imports simulator.schedulers and simulator.scenario.
"""
