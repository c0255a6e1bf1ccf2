# SPDX-License-Identifier: Apache-2.0
"""The old path of :mod:`.pipeline.plugin_contract`, for filters and weighers of others."""

from nova_nodb_scheduler.scheduling.pipeline.plugin_contract import (
    Filter,
    HostObjects,
    OnHostObjects,
    WeighedOnObjects,
    Weigher,
    as_key,
)

__all__ = ["Filter", "HostObjects", "OnHostObjects", "WeighedOnObjects", "Weigher", "as_key"]
