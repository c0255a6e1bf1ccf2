# SPDX-License-Identifier: Apache-2.0
"""Which programs the line in nova.conf switches the plugin on in, and how strictly.

Every program that reads nova.conf loads the notification driver: consoles,
``nova-status``, scripts of the operator's. The plugin goes only into those that
write or read host states, listed here; a mistake in its options must never stop
one that has nothing to do with it.

================================== ====== ==================================
program                            strict why
================================== ====== ==================================
nova-scheduler                     yes    places from memory: must not run as
                                          something else than is configured
nova-conductor                     yes    reports its cell's writes
nova-api and its WSGI forms        yes    reports disabling, forcing down,
                                          deletions, aggregates
nova-manage                        no     reports what it writes; a sweep finds
                                          it where it could not
our own commands                   --     activate by themselves, with their own
                                          words for what is wrong
nova-compute, all others           --     stay exactly stock
================================== ====== ==================================
"""

from __future__ import annotations

import os
from collections.abc import Container

import attrs


@attrs.frozen
class Program:
    """A program that the plugin goes into.

    :param role: who it is for its reporter
    :param is_strict: a mistake in the options ends it; else it runs stock
    """

    role: str
    is_strict: bool


_API = Program("api", is_strict=True)
_BY_NAME = {
    "nova-scheduler": Program("scheduler", is_strict=True),
    "nova-conductor": Program("conductor", is_strict=True),
    "nova-manage": Program("manage", is_strict=False),
    # Nova's own servers until 2026.1, and the scripts for WSGI servers.
    "nova-api": _API,
    "nova-api-os-compute": _API,
    "nova-api-metadata": _API,
    "nova-api-wsgi": _API,
    "nova-metadata-wsgi": _API,
    # What a WSGI server calls itself: nothing else that it hosts reads nova.conf.
    "uwsgi": _API,
    "mod_wsgi": _API,
    "gunicorn": _API,
}
#: Loaded wherever Nova's API runs, whatever its server is called.
_API_MODULE = "nova.api.openstack.wsgi_app"


def of(path: str, loaded: Container[str]) -> Program | None:
    """Return what a program is; None for one that is left alone.

    :param path: as it was started, ``sys.argv[0]``
    :param loaded: names of the modules that it has imported
    """
    name = os.path.basename(path)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith("nova-"):
        return None
    return _API if _API_MODULE in loaded else None
