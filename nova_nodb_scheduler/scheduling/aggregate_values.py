# SPDX-License-Identifier: Apache-2.0
"""The old path of :class:`.option_weigher.OverriddenNumber`, for weighers of others."""

from nova_nodb_scheduler.scheduling.weighers.option_weigher import OverriddenNumber

__all__ = ["OverriddenNumber"]
