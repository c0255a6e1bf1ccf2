# SPDX-License-Identifier: Apache-2.0
"""nova-api as a WSGI module with the reporter, explicitly.

Name it to the WSGI server in the place of ``nova.wsgi.osapi_compute``:
``nova_nodb_scheduler.cmd.wsgi:application``.
"""

from __future__ import annotations

import importlib
from typing import Any

from nova_nodb_scheduler.cmd import explicit_services, patching


def _application() -> Any:
    return importlib.import_module("nova.wsgi.osapi_compute").application


patching.for_threads()
application = explicit_services.run(_application, "api")
