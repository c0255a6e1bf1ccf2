# SPDX-License-Identifier: Apache-2.0
"""Events to projects through a real Zaqar, which runs in an environment of its own."""

# Chooses native threads before any module of Nova's is imported.
import tests.functional.nova_adapter  # noqa: F401
