# SPDX-License-Identifier: Apache-2.0
"""Placement as a WSGI module, guarded.

Name it to the WSGI server in the place of ``placement.wsgi.api``:
``nova_nodb_scheduler.placement_adapter.wsgi:application``.
"""

from __future__ import annotations

import gc

from placement import wsgi

from nova_nodb_scheduler.placement_adapter import guard_header, guard_switch

# First: a release that is not known ends the process before it answers anything.
guard_switch.switch_on()
application = guard_header.added_to(wsgi.init_application())
# What was made by now stays, a hundred thousand objects of code: to walk over them for each full
# look for cycles took a thirtieth of the processor's time of requests. After the last look at it.
gc.collect()
gc.freeze()
