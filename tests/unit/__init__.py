# SPDX-License-Identifier: Apache-2.0
"""Unit tests. A machine that pauses while hypothesis draws a value is no finding of theirs."""

import hypothesis

hypothesis.settings.register_profile(
    "unit", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unit")
