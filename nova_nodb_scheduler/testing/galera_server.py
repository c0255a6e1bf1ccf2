# SPDX-License-Identifier: Apache-2.0
"""A real two-node Galera cluster of MariaDB, and the fixture that gives tests a database on it.

Both nodes listen on 127.0.0.1 alone. The second takes its first state from the
first by rsync. The first has two votes, so that it goes on alone when the
second is lost; the second, left alone, refuses to serve: both are wanted.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence

from nova_nodb_scheduler.testing import server_processes, servers

_PROVIDERS = (
    "/usr/lib/galera/libgalera_smm.so",
    "/usr/lib64/galera/libgalera_smm.so",
    "/usr/lib64/galera-4/libgalera_smm.so",
    "/usr/lib/libgalera_smm.so",
)
#: Longest time until a silent node is put out of the cluster.
EVICTION_SECONDS = 10.0


class GaleraNode(server_processes.MariaDBServer):
    """One node; a restart joins it to the cluster again.

    :param votes: its weight when the cluster falls apart
    """

    # Not root: the rsync that brings the state would become "nobody".
    unprivileged_user = "mysql"
    # Its helpers end with it only if it may end them.
    stop_signal = signal.SIGTERM

    def __init__(self, name: str, votes: int) -> None:
        super().__init__()
        self._name = name
        self._votes = votes
        self.group_port = server_processes.free_port()
        self._state_port = server_processes.free_port()
        self._increment_port = server_processes.free_port()
        #: Group addresses of all nodes; empty: it begins a cluster.
        self.peers: tuple[str, ...] = ()

    def command(self) -> Sequence[str]:
        provider_options = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self._increment_port}",
            "pc.weight": str(self._votes),
            "gcache.size": "32M",
            "evs.keepalive_period": "PT0.5S",
            "evs.suspect_timeout": "PT2S",
            "evs.inactive_timeout": "PT4S",
            "evs.inactive_check_period": "PT0.5S",
        }
        options = ";".join(f"{name}={value}" for name, value in provider_options.items())
        settings = {
            "wsrep-on": "ON",
            "wsrep-provider": _provider(),
            "wsrep-provider-options": options,
            "wsrep-cluster-name": "nodb",
            "wsrep-cluster-address": "gcomm://" + ",".join(self.peers),
            "wsrep-node-name": self._name,
            "wsrep-node-address": f"127.0.0.1:{self.group_port}",
            "wsrep-node-incoming-address": f"127.0.0.1:{self.port}",
            "wsrep-sst-method": "rsync",
            "wsrep-sst-receive-address": f"127.0.0.1:{self._state_port}",
            "wsrep-slave-threads": "2",
            "binlog-format": "ROW",
            "default-storage-engine": "InnoDB",
            "innodb-autoinc-lock-mode": "2",
        }
        return (*super().command(), *(f"--{name}={value}" for name, value in settings.items()))

    @staticmethod
    def _user() -> tuple[str, ...]:
        return ()

    def answers(self) -> bool:
        """Return whether the node is a synced member of a cluster that may write."""
        return super().answers() and self.status().get("wsrep_local_state_comment") == "Synced"

    def status(self) -> Mapping[str, str]:
        """Return the node's own account of itself."""
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", connect_timeout=5, read_timeout=5
        )
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep%'")
            return dict(cursor.fetchall())


def _provider() -> str:
    for path in _PROVIDERS:
        if os.path.exists(path):
            return path
    return server_processes.find_program("libgalera_smm.so")


class GaleraCluster:
    """Two nodes, the first with the majority."""

    def __init__(self) -> None:
        self.nodes = (GaleraNode("first", 2), GaleraNode("second", 1))

    @property
    def first(self) -> GaleraNode:
        return self.nodes[0]

    @property
    def second(self) -> GaleraNode:
        return self.nodes[1]

    def execute(self, statement: str) -> None:
        """Execute a statement on the first node."""
        self.first.execute(statement)

    def start(self) -> None:
        """Start both nodes, the second with the first's state; some ten seconds."""
        peers = tuple(f"127.0.0.1:{node.group_port}" for node in self.nodes)
        for node in self.nodes:
            node.initialize()
        self.first.start()
        self.first.peers = self.second.peers = peers
        self.second.start()

    def wait_until_whole(self) -> None:
        """Wait until both nodes are synced and know of one another."""
        deadline = time.monotonic() + server_processes.START_TIMEOUT_SECONDS
        while not all(
            node.answers() and node.status().get("wsrep_cluster_size") == "2" for node in self.nodes
        ):
            if time.monotonic() > deadline:
                raise server_processes.ServerFailed(
                    f"the cluster does not come together: {self.second.log_tail()}"
                )
            time.sleep(0.1)

    def destroy(self) -> None:
        """End both nodes, the second first: its leave needs an answer."""
        for node in reversed(self.nodes):
            node.destroy()


def _begin() -> GaleraCluster:
    cluster = GaleraCluster()
    atexit.register(cluster.destroy)
    cluster.start()
    return cluster


class Galera(servers.ServerFixture):
    """A fresh, empty database on a cluster of the process, or on a private one.

    ``urls`` are the database on the first and on the second node.
    """

    def __init__(self, private: bool = False) -> None:
        self._private = private

    def require_programs(self) -> None:
        server_processes.find_program("mariadbd")
        server_processes.find_program("rsync")
        _provider()

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        if self._private:
            self.cluster = GaleraCluster()
            self.addCleanup(self.cluster.destroy)
            self.cluster.start()
        else:
            self.cluster = servers.shared(GaleraCluster, _begin)
        self.cluster.wait_until_whole()
        name = f"nodb_{uuid.uuid4().hex[:12]}"
        self.cluster.execute(f"CREATE DATABASE {name}")
        if not self._private:
            self.addCleanup(self.cluster.execute, f"DROP DATABASE {name}")
        self.urls = tuple(node.url(name) for node in self.cluster.nodes)
        self.url = self.urls[0]
