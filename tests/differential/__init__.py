# SPDX-License-Identifier: Apache-2.0
"""The plugin's decisions against Nova's HostManager and a real Placement, case by case."""
