# SPDX-License-Identifier: Apache-2.0
"""The memcached driver over TLS, on a real memcached that speaks it."""

from __future__ import annotations

from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.testing import servers
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import certificates


class TestTLS(certificates.WithCertificates, contract_case.Case):
    def setUp(self) -> None:
        super().setUp()
        self.memcached = self.enterContext(
            servers.Memcached("-m", "64", "-M", tls_directory=self.directory)
        )

    def make(self, **changes: Any) -> memcached.MemcachedSynchronizer:
        settings = {
            "servers": (self.memcached.address,),
            "tls_enabled": True,
            "tls_cafile": f"{self.directory}/ca.pem",
            "timeout_seconds": 2.0,
            "poll_interval_seconds": 0.02,
            **changes,
        }
        return memcached.MemcachedSynchronizer(memcached.MemcachedOptions(**settings))

    def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
        return self.make()

    def test_a_trusted_certificate_is_accepted_and_records_come_and_go(self) -> None:
        writer, reader = self.client(), contract_case.FeedReader(self.client())
        # More than one request holds, of names and of bytes.
        small = self.fill(writer, 1200)
        large = self.put(writer, "large", b"x" * 900_000)
        late = records.Write(small[0].key, small[0].revision + 1, b"late")
        [lost] = writer.write([late])
        self.assertIs(records.Verdict.LOST, lost.verdict)
        self.drop(writer, small[0])
        reader.catch_up()
        self.assertEqual(0, reader.resyncs)
        held = contract_case.everything(self.client())
        self.assertEqual(1200, len(held))
        self.assertEqual(large, held[large.key])
        self.assertEqual(contract_case.states(held), contract_case.states(reader.held))

    def test_a_server_that_was_restarted_is_found_again(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        self.memcached.server.restart()
        self.put(client, "a", b"two")

    def test_a_certificate_nobody_trusts_is_refused(self) -> None:
        self._assert_refused("TLS failed", tls_cafile=f"{self.directory}/other.pem")

    def test_the_systems_authorities_are_the_default(self) -> None:
        self._assert_refused("the system's", tls_cafile=None)

    def test_a_certificate_of_another_host_is_refused(self) -> None:
        address = self.memcached.address.replace("127.0.0.1", "localhost")
        self._assert_refused("name the host", servers=(address,))

    def test_a_file_that_holds_no_certificates_is_refused(self) -> None:
        for cafile in ("/nowhere/ca.pem", f"{self.directory}/server.key"):
            with self.subTest(cafile=cafile):
                self._assert_refused("cannot be read", tls_cafile=cafile)

    def test_authorities_without_tls_are_refused(self) -> None:
        self._assert_refused("tls_enabled", tls_enabled=False)

    def test_tls_to_a_port_with_plain_text_is_refused(self) -> None:
        plain = self.enterContext(servers.Memcached())
        self._assert_refused("the port must speak TLS", servers=(plain.address,))

    def test_plain_text_to_a_port_with_tls_is_told(self) -> None:
        client = self.make(tls_enabled=False, tls_cafile=None)
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.open()
        self.assertIn("set [nodb_memcached] tls_enabled", str(caught.exception))

    def test_a_server_that_is_down_is_unavailable_and_not_refused(self) -> None:
        self.memcached.server.kill()
        with self.assertRaises(errors.BackendUnavailable):
            self.make().open()

    def _assert_refused(self, text: str, **changes: Any) -> None:
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.make(**changes).open()
        self.assertEqual("[nodb_memcached] tls_cafile", caught.exception.option)
        self.assertIn(text, str(caught.exception))
