# SPDX-License-Identifier: Apache-2.0
"""Shows results."""


def show(kept, given):
    pass
