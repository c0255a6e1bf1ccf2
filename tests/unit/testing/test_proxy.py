# SPDX-License-Identifier: Apache-2.0
"""A proxy does to a connection what a fault of the network, or of a server, does."""

import socket
import threading

import testtools

from nova_nodb_scheduler.testing import proxy

SECONDS = 20.0


class EchoServer:
    """Sends back what it gets, on 127.0.0.1."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def _echo(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(4096):
                    client.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        """End; a second call does nothing."""
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS)


class ProxyTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.proxy = self.useFixture(proxy.Proxy(self.server.port))

    def serve(self, port=0):
        server = EchoServer(port)
        self.addCleanup(server.close)
        return server

    def connect(self):
        client = socket.create_connection(("127.0.0.1", self.proxy.port), SECONDS)
        self.addCleanup(client.close)
        return client

    def ask(self, client, text=b"word"):
        client.sendall(text)
        return client.recv(4096)

    def assert_broken(self, client):
        try:
            self.assertEqual(b"", self.ask(client))
        except OSError:
            return

    def test_bytes_pass_both_ways(self):
        self.assertEqual(f"127.0.0.1:{self.proxy.port}", self.proxy.address)
        self.assertEqual(b"word", self.ask(self.connect()))

    def test_what_was_held_back_is_delivered_afterwards(self):
        client = self.connect()
        self.assertEqual(b"word", self.ask(client))
        self.proxy.freeze()
        client.settimeout(0.3)
        self.assertRaises(TimeoutError, self.ask, client, b"held")
        client.settimeout(SECONDS)
        self.proxy.thaw()
        self.assertEqual(b"held", client.recv(4096))

    def test_who_refuses_breaks_what_is_open_and_what_comes(self):
        client = self.connect()
        self.assertEqual(b"word", self.ask(client))
        self.proxy.refuse()
        self.assert_broken(client)
        self.assert_broken(self.connect())
        self.proxy.accept()
        self.assertEqual(b"word", self.ask(self.connect()))

    def test_a_reply_that_is_lost_does_not_come_later(self):
        client = self.connect()
        self.proxy.lose_replies()
        client.settimeout(0.3)
        self.assertRaises(TimeoutError, self.ask, client, b"lost")
        self.proxy.heal()
        self.assertEqual(b"word", self.ask(self.connect()))

    def test_a_server_that_comes_back_is_reached_again(self):
        port = self.server.port
        self.server.close()
        self.assert_broken(self.connect())
        self.serve(port)
        self.assertEqual(b"word", self.ask(self.connect()))
