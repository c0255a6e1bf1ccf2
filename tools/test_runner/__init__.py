# SPDX-License-Identifier: Apache-2.0
"""What runs the project's checks and tests: ``tools/test.sh`` starts it.

``stages`` is the table of what there is to run. It needs nothing but the
standard library, since it begins on a machine that has nothing yet.
"""
