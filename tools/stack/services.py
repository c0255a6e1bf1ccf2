# SPDX-License-Identifier: Apache-2.0
"""The command line, environment and way to end of each process of the stack."""

import getpass
import os
import signal

import attrs

from tools.stack import daemons
from tools.stack import settings as stack_settings

_WSGI = {
    "keystone": "keystone.wsgi.api:application",
    "placement": "placement.wsgi.api:application",
    "glance": "glance.wsgi.api:application",
    "neutron": "neutron.wsgi.api:application",
    "nova-api": "nova.wsgi.osapi_compute:application",
}
_GUARDED_PLACEMENT = "nova_nodb_scheduler.placement_adapter.wsgi:application"
_EVENTLET_API = (31, 32)
"""Releases whose API patches the process it is loaded into, after gunicorn made its poller and
threads: what waits there would let no green thread run. One request at a time, as with uWSGI."""
_RABBITMQ_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
RABBITMQCTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
"""Below /usr/lib: the wrappers in /usr/sbin change to the distribution's own node and user."""


@attrs.frozen
class Service:
    """How one process is started and ended. ``port`` is None when it does not listen."""

    command: tuple[str, ...]
    environment: dict[str, str]
    port: int | None
    end_signal: int


def service(settings: stack_settings.Settings, name: str) -> Service:
    """The service of that name; ValueError names what there is."""
    if name in _WSGI:
        return _wsgi(settings, name)
    if name in (*settings.control_plane_names, *settings.compute_names):
        return _nova(settings, name)
    makers = {
        "mariadb": _mariadb,
        "epmd": _epmd,
        "rabbitmq": _rabbitmq,
        "memcached": _memcached,
    }
    if name not in makers:
        raise ValueError(f"no service '{name}'; there are: {', '.join(names(settings))}")
    return makers[name](settings)


def names(settings: stack_settings.Settings) -> tuple[str, ...]:
    """All processes, in the order of starting."""
    daemon_names = ("mariadb", "epmd", "rabbitmq", "memcached")
    peers = ("keystone", "placement", "glance", "neutron")
    return (*daemon_names, *peers, *settings.control_plane_names, *settings.compute_names)


def _wsgi(settings: stack_settings.Settings, name: str) -> Service:
    directory = "nova/nova-api" if name == "nova-api" else name
    variable = "OS_NOVA_CONFIG_DIR" if name == "nova-api" else f"OS_{name.upper()}_CONFIG_DIR"
    port = settings.port(name)
    command = [settings.program("gunicorn"), "-c", str(settings.etc / "gunicorn.py")]
    if name == "nova-api":
        workers = settings.api_workers
        if settings.nova in _EVENTLET_API:
            command += ["-k", "sync", "--threads", "1"]
            workers *= 2
        command += ["-w", str(workers)]
    guarded = name == "placement" and settings.guarded_placement
    application = _GUARDED_PLACEMENT if guarded else _WSGI[name]
    command += ["-b", f"127.0.0.1:{port}", application]
    environment = {variable: str(settings.etc / directory)}
    # SIGINT: gunicorn's quick end, which does not wait for idle keep-alive connections.
    return Service(tuple(command), environment, port, signal.SIGINT)


def _nova(settings: stack_settings.Settings, name: str) -> Service:
    binary = "nova-conductor" if "conductor" in name else "-".join(name.split("-")[:2])
    file = settings.etc / "nova" / name / "nova.conf"
    command = (settings.program(binary), "--config-file", str(file))
    # On SIGTERM Nova 34 waits up to 180 s for requests in flight.
    return Service(command, {}, None, signal.SIGKILL)


def _mariadb(settings: stack_settings.Settings) -> Service:
    command = ("mariadbd", f"--defaults-file={settings.etc / 'my.cnf'}")
    return Service(command, {}, settings.port("mariadb"), signal.SIGTERM)


def _epmd(settings: stack_settings.Settings) -> Service:
    port = settings.port("epmd")
    command = ("epmd", "-address", "127.0.0.1", "-port", str(port))
    return Service(command, {}, port, signal.SIGTERM)


def _rabbitmq(settings: stack_settings.Settings) -> Service:
    environment = daemons.rabbitmq_environment(settings)
    return Service((_RABBITMQ_SERVER,), environment, settings.port("rabbitmq"), signal.SIGTERM)


def _memcached(settings: stack_settings.Settings) -> Service:
    port = settings.port("memcached")
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "64"]
    if os.geteuid() == 0:
        command += ["-u", getpass.getuser()]
    return Service(tuple(command), {}, port, signal.SIGTERM)
