# SPDX-License-Identifier: Apache-2.0
"""When each compute service was last heard of, from the store instead of its row: writers, readers.

Called by Nova's objects, in the processes that write and read ``services``. Knows nothing of what
else is reported.
"""
