# SPDX-License-Identifier: Apache-2.0
"""Configuration and environment of MariaDB, RabbitMQ, memcached and gunicorn."""

import base64
import getpass
import hashlib
import json
import os
import textwrap

from tools.stack import settings as stack_settings

_GUNICORN = """\
import sys

worker_class = "gthread"
workers = 1
threads = 8
# Nova asks Neutron for the ports of 150 servers by one URL, and for fewer beyond 8192 bytes.
limit_request_line = 8190
timeout = 300
keepalive = 60
graceful_timeout = 5


def post_fork(server, worker):
    # Neutron's and Glance's WSGI modules parse sys.argv with oslo.config.
    sys.argv = sys.argv[:1]
"""


def write(settings: stack_settings.Settings) -> None:
    """Write every file below etc/ that a daemon reads."""
    (settings.etc / "my.cnf").write_text(_my_cnf(settings))
    (settings.etc / "gunicorn.py").write_text(_GUNICORN)
    (settings.etc / "rabbitmq.conf").write_text(_rabbitmq_conf(settings))
    (settings.etc / "rabbitmq-plugins").write_text("[].\n")
    (settings.etc / "rabbitmq-definitions.json").write_text(_rabbitmq_definitions(settings))


def rabbitmq_environment(settings: stack_settings.Settings) -> dict[str, str]:
    """Own node name, own epmd and own distribution port: no clash with another RabbitMQ."""
    home = settings.state / "rabbitmq"
    etc = settings.etc
    arguments = (
        "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
    )
    return {
        "HOME": str(home),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(settings.port("epmd")),
        "RABBITMQ_NODENAME": f"nodb{settings.first_port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(settings.port("rabbitmq")),
        "RABBITMQ_DIST_PORT": str(settings.port("rabbitmq-distribution")),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(settings.log / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(etc / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(etc / "rabbitmq-plugins"),
        "RABBITMQ_PID_FILE": str(settings.run / "rabbitmq.erlang-pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
    }


def _my_cnf(settings: stack_settings.Settings) -> str:
    return textwrap.dedent(f"""\
        [mysqld]
        datadir = {settings.state / "mysql"}
        # A server that starts removes the temporary tables of others in a directory they share.
        tmpdir = {settings.run}
        socket = {settings.mariadb_socket}
        pid-file = {settings.run / "mariadb.server-pid"}
        port = {settings.port("mariadb")}
        bind-address = 127.0.0.1
        skip-name-resolve
        skip-log-bin
        max_connections = 1000
        character-set-server = utf8mb4
        log_error = {settings.log / "mariadb.log"}
        # Durability across a crash of the machine is of no use here; speed is.
        innodb_buffer_pool_size = 512M
        innodb_flush_log_at_trx_commit = 2
        innodb_doublewrite = 0
        innodb_log_file_size = 256M
        sync_frm = 0
        {f"user = {getpass.getuser()}" if os.geteuid() == 0 else ""}
        """)


def _rabbitmq_conf(settings: stack_settings.Settings) -> str:
    return textwrap.dedent(f"""\
        listeners.tcp.1 = 127.0.0.1:{settings.port("rabbitmq")}
        log.console = false
        vm_memory_high_watermark.absolute = 1GB
        disk_free_limit.absolute = 100MB
        load_definitions = {settings.etc / "rabbitmq-definitions.json"}
        """)


def _rabbitmq_definitions(settings: stack_settings.Settings) -> str:
    """A user per process, so that RabbitMQ itself can tell who made a call."""
    salt = b"nodb"
    digest = hashlib.sha256(salt + stack_settings.PASSWORD.encode()).digest()
    virtual_hosts = ["/", "neutron", *settings.cell_names]
    users = ["neutron", "nova-manage", *settings.control_plane_names, *settings.compute_names]
    return json.dumps(
        {
            "users": [
                {
                    "name": user,
                    "password_hash": base64.b64encode(salt + digest).decode(),
                    "hashing_algorithm": "rabbit_password_hashing_sha256",
                    "tags": "",
                }
                for user in users
            ],
            "vhosts": [{"name": name} for name in virtual_hosts],
            "permissions": [
                {"user": u, "vhost": v, "configure": ".*", "write": ".*", "read": ".*"}
                for u in users
                for v in virtual_hosts
            ],
        },
        indent=1,
    )
