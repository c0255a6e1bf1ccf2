# SPDX-License-Identifier: Apache-2.0
"""A real Nova control plane on loopback, without containers, for demonstrations and tests.

    tools/stack.sh up [--no-plugin] [--schedulers N] [--computes N] ...
    tools/stack.sh plugin on|off
    tools/stack.sh prometheus
    tools/stack.sh down [--wipe]

From Python (run inside the stack's virtual environment, from the checkout)::

    from tools.stack import settings, stack

    cluster = stack.Stack.existing(settings.default_state_directory())
    cluster.kill("nova-scheduler-1", signal.SIGKILL)
    cluster.start("nova-scheduler-1")

| module | duty |
|---|---|
| ``environment`` | system packages and the virtual environment (standard library only) |
| ``settings`` | what a stack consists of: directories, ports, numbers of processes |
| ``configuration`` | every OpenStack service's configuration, the plugin's lines included |
| ``daemons`` | configuration of MariaDB, RabbitMQ, memcached and gunicorn |
| ``processes`` | start, signal and end processes by pid file |
| ``services`` | the command line of each process |
| ``database`` | SQL as MariaDB's root, databases and users, schema commands |
| ``cloud`` | the OpenStack APIs as a client sees them, and the first contents of the cloud |
| ``stack`` | the whole: up, down, plugin, restart, kill, capacity |
| ``monitoring`` | a Prometheus that scrapes the stack |
| ``counts`` | what processes did: SQL, RPC calls, requests to Placement, the plugin's figures |
| ``demo`` | the demonstration: what is done |
| ``demo_report`` | the demonstration: what is shown |
| ``tempest`` | Tempest against the stack |
"""
