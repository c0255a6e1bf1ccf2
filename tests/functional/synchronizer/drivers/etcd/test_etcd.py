# SPDX-License-Identifier: Apache-2.0
"""The etcd driver's options, and what it refuses or warns of at the start."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from typing import Any

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers import etcd
from nova_nodb_scheduler.synchronizer.drivers.etcd import steps
from nova_nodb_scheduler.testing import etcd_server, proxy, server_processes
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import certificates, step_case
from tests.functional.synchronizer.drivers.etcd import etcd_case


class RefusalCase(etcd_case.EtcdCase):
    def assert_refused(self, option: str, *words: str, **changes: Any) -> str:
        """Open a client that must be refused because of an option; returns the text."""
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.make(**changes).open()
        text = str(caught.exception)
        for word in (f"[nodb_etcd] {option} =", *words):
            self.assertIn(word, text)
        return text


class TestOptions(RefusalCase):
    def test_endpoints_that_are_no_urls_are_refused(self) -> None:
        for endpoint in ("127.0.0.1:2379", "http://one", "ftp://one:1", "http://one:1/v3", "x:y:z"):
            with self.subTest(endpoint=endpoint):
                self.assert_refused(
                    "endpoints", endpoint, "http://127.0.0.1:2379", endpoints=(endpoint,)
                )
        self.assert_refused("endpoints", endpoints=())

    def test_a_password_in_a_url_is_refused_and_not_shown(self) -> None:
        text = self.assert_refused("endpoints", endpoints=("http://u:s3cret@one:2379",))
        self.assertNotIn("s3cret", text)
        self.assertNotIn("s3cret", repr(etcd.EtcdOptions(username="u", password="s3cret")))

    def test_a_prefix_that_is_no_name_is_refused(self) -> None:
        for prefix in ("", "a b", "x" * 61):
            with self.subTest(prefix=prefix):
                self.assert_refused("key_prefix", key_prefix=prefix)

    def test_half_a_pair_is_refused(self) -> None:
        self.assert_refused("username", "password", username="nova")
        self.assert_refused("tls_certfile", "tls_keyfile", tls_keyfile="/nowhere")

    def test_a_certificate_that_is_not_there_is_refused_by_its_option(self) -> None:
        self.assert_refused("tls_cafile", "/nowhere", tls_cafile="/nowhere/ca.pem")

    def test_a_client_is_made_from_configuration(self) -> None:
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[])
        etcd.EtcdSynchronizer.register_opts(conf)
        conf.set_override("endpoints", [self.etcd.url], group="nodb_etcd")
        conf.set_override("key_prefix", self.etcd.key_prefix, group="nodb_etcd")
        client = loader.load("etcd", conf)
        client.open()
        self.addCleanup(client.close)
        written = self.put(client, "a", b"one")
        self.assertEqual({written.key: written}, contract_case.everything(self.client()))


class TestPrefixes(RefusalCase):
    def test_two_prefixes_share_an_etcd_without_meeting(self) -> None:
        one = self.client()
        two = self.opened(key_prefix=f"{self.etcd.key_prefix}2")
        written = self.put(one, "a", b"one")
        head = one.head()
        self.assertEqual({}, contract_case.everything(two))
        self.put(two, "b", b"two")
        two.reset()
        self.assertEqual({written.key: written}, contract_case.everything(one))
        self.assertEqual(records.Changes((), head), self.changes(one, head))

    def test_a_prefix_of_another_cloud_is_refused(self) -> None:
        self.opened(cloud_name="east")
        self.opened(cloud_name="east")
        for name in ("west", ""):
            with self.subTest(name=name):
                self.assert_refused("key_prefix", "'east'", "cloud_name", cloud_name=name)

    def test_a_reset_leaves_the_prefix_to_its_cloud(self) -> None:
        self.opened(cloud_name="east").reset()
        self.assert_refused("key_prefix", "'east'", cloud_name="west")

    def test_a_prefix_of_something_else_is_refused_with_the_key_it_met(self) -> None:
        for key in ("0", "registry/pods", "z"):
            with self.subTest(key=key):
                prefix = f"{self.etcd.key_prefix}-{key[0]}"
                self.server.put(f"{prefix}/{key}")
                self.assert_refused("key_prefix", f"{prefix}/{key}", key_prefix=prefix)


class TestServers(RefusalCase):
    private = True

    def test_members_of_two_clusters_are_refused(self) -> None:
        other = self.enterContext(etcd_server.Etcd(private=True))
        self.assert_refused(
            "endpoints", other.url, "clusters", endpoints=(self.etcd.url, other.url)
        )

    def test_members_whose_clocks_are_apart_are_warned_of(self) -> None:
        late = self._pretend("3.4.23", cluster=self._cluster(), ahead_seconds=60.0)
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logs:
            self.opened(endpoints=(self.etcd.url, late))
        [line] = (line for line in logs.output if "NTP" in line)
        self.assertIn(late, line)
        even = self._pretend("3.4.23", cluster=self._cluster())
        with self.assertNoLogs("nova_nodb_scheduler", "WARNING"):
            self.opened(endpoints=(self.etcd.url, even))

    def test_an_etcd_that_is_too_old_is_refused(self) -> None:
        self.assert_refused("endpoints", "3.3.27", "3.4", endpoints=(self._pretend("3.3.27"),))

    def test_what_is_no_etcd_is_refused(self) -> None:
        self.assert_refused("endpoints", "no etcd", endpoints=(self._pretend(None),))

    def test_nobody_there_is_unavailable_and_not_misconfigured(self) -> None:
        nobody = f"http://127.0.0.1:{server_processes.free_port()}"
        with self.assertRaises(errors.BackendUnavailable) as caught:
            self.make(endpoints=(nobody,)).open()
        self.assertIn(nobody, str(caught.exception))

    def test_an_etcd_without_auto_compaction_is_warned_of_once(self) -> None:
        idle = self.enterContext(etcd_server.Etcd("--max-txn-ops=128"))
        client = self.make(endpoints=(idle.url,))
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logs:
            client.open()
            client.open()
        self.addCleanup(client.close)
        warnings = [line for line in logs.output if "--auto-compaction-retention" in line]
        self.assertEqual(1, len(warnings))
        self.assertIn(idle.url, warnings[0])
        with self.assertNoLogs("nova_nodb_scheduler", "WARNING"):
            self.opened(endpoints=(idle.url,), compact=True)

    def test_one_that_compacts_is_not_warned_of(self) -> None:
        with self.assertNoLogs("nova_nodb_scheduler", "WARNING"):
            self.opened()
        somehow = self.enterContext(etcd_server.Etcd("--max-txn-ops=128"))
        somehow.server.put("a")
        somehow.server.compact(somehow.server.put("a"))
        with self.assertNoLogs("nova_nodb_scheduler", "WARNING"):
            self.opened(endpoints=(somehow.url,))

    def _cluster(self) -> str:
        return str(self.server.post("/maintenance/status", {})["header"]["cluster_id"])

    def _pretend(self, version: str | None, cluster: str = "1", ahead_seconds: float = 0.0) -> str:
        """Serve the version and the status of another etcd, and nothing else."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"etcdserver": version} if version else {})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer({"header": {"cluster_id": cluster}})

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(time.time() + ahead_seconds)

            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, body: object) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"


class TestAuthentication(RefusalCase):
    """An etcd with a root user, and a user that may use one prefix."""

    options = ("--auto-compaction-retention=1h", "--auth-token-ttl=2")

    def setUp(self) -> None:
        super().setUp()
        prefix = f"{self.etcd.key_prefix}/"
        post = self.server.post
        post("/auth/user/add", {"name": "root", "password": "r"})
        post("/auth/user/add", {"name": "nova", "password": "n"})
        post("/auth/role/add", {"name": "root"})
        post("/auth/role/add", {"name": "nodb"})
        permission = {
            "permType": "READWRITE",
            "key": etcd_server.encode(prefix.encode()),
            "range_end": etcd_server.encode(prefix[:-1].encode() + b"0"),
        }
        post("/auth/role/grant", {"name": "nodb", "perm": permission})
        post("/auth/user/grant", {"user": "root", "role": "root"})
        post("/auth/user/grant", {"user": "nova", "role": "nodb"})
        post("/auth/enable", {})

    def test_a_user_with_the_prefix_reads_writes_and_follows(self) -> None:
        client = self.opened(username="nova", password="n")
        reader = contract_case.FeedReader(client)
        written = self.put(client, "a", b"one")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)
        client.collect(0.0)
        self.assertEqual(1, client.statistics()["records"])
        client.reset()
        self.assertEqual({}, contract_case.everything(client))

    def test_an_expired_token_is_replaced_in_passing(self) -> None:
        client = self.opened(username="nova", password="n", timeout_seconds=10.0)
        reader = contract_case.FeedReader(client)
        self.server.restart()  # which forgets all tokens
        written = self.put(client, "a", b"one")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)

    def test_credentials_that_are_missing_or_wrong_are_refused(self) -> None:
        self.assert_refused("username", "password")
        self.assert_refused("username", "refuses", username="nova", password="wrong")

    def test_a_prefix_without_permission_is_refused(self) -> None:
        self.assert_refused(
            "username", "readwrite", username="nova", password="n", key_prefix="somebody-elses"
        )

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return self.make(username="nova", password="n")


class TestCredentialsForNobody(etcd_case.EtcdCase):
    def test_a_user_where_etcd_asks_for_none_is_warned_of(self) -> None:
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logs:
            client = self.opened(username="nova", password="n")
        self.assertTrue(any("not enabled" in line for line in logs.output))
        self.put(client, "a", b"one")


class TestTLS(certificates.WithCertificates, RefusalCase):
    def setUp(self) -> None:
        contract_case.Case.setUp(self)
        self.etcd = self.enterContext(etcd_server.Etcd(tls_directory=self.directory))
        self.server = self.etcd.server
        self.ca = f"{self.directory}/ca.pem"

    def test_records_and_feed_travel_encrypted(self) -> None:
        client = self.opened(tls_cafile=self.ca)
        reader = contract_case.FeedReader(self.opened(tls_cafile=self.ca))
        written = self.put(client, "a", b"one")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)
        self.assertEqual(0, reader.resyncs)

    def test_of_a_write_whose_encrypted_answer_is_spoilt_nobody_knows(self) -> None:
        lead = self.enterContext(proxy.Proxy(self.server.port))
        client = self.opened(endpoints=(f"https://{lead.address}",), tls_cafile=self.ca)
        before = self.put(client, "a", b"one")
        # The head of a record with data.
        client.on_step = step_case.at(
            steps.Step.SEND, lambda: lead.rename_in_replies(b"\x17\x03\x03", b"\x17\x03\x02")
        )
        [result] = client.write([records.Write(before.key, before.revision, b"two")])
        self.assertIs(records.Verdict.UNKNOWN, result.verdict)
        standing = self.opened(tls_cafile=self.ca).read([before.key])[before.key]
        self.assertEqual(b"two", standing.payload)

    def test_an_authority_that_is_not_trusted_is_refused(self) -> None:
        self.assert_refused("endpoints", "tls_cafile", "certificate")

    def test_the_wrong_scheme_is_named_with_the_remedy(self) -> None:
        other = self.enterContext(etcd_server.Etcd())
        for url in (f"http://{self.server.address}", f"https://{other.server.address}"):
            with self.subTest(url=url):
                # Whether it is told apart from a server in trouble, chance decides.
                refusals = (errors.ConfigurationError, errors.BackendUnavailable)
                with self.assertRaises(refusals) as caught:
                    self.make(endpoints=(url,)).open()
                self.assertIn(url, str(caught.exception))
                self.assertIn("http or https", str(caught.exception))

    def test_a_client_certificate_is_asked_for_and_given(self) -> None:
        strict = self.enterContext(
            etcd_server.Etcd(
                "--client-cert-auth",
                f"--trusted-ca-file={self.ca}",
                "--auto-compaction-retention=1h",
                tls_directory=self.directory,
            )
        )
        with self.assertRaises((errors.ConfigurationError, errors.BackendUnavailable)):
            self.make(endpoints=(strict.url,), tls_cafile=self.ca).open()
        client = self.opened(
            endpoints=(strict.url,),
            tls_cafile=self.ca,
            tls_certfile=f"{self.directory}/server.pem",
            tls_keyfile=f"{self.directory}/server.key",
        )
        reader = contract_case.FeedReader(client)
        self.put(client, "a", b"one")
        reader.catch_up()
        self.assertEqual(1, len(reader.held))


class TestEndpointsBehindAProxy(etcd_case.EtcdCase):
    def test_two_urls_of_one_member_are_one_cluster(self) -> None:
        lead = self.enterContext(proxy.Proxy(self.server.port))
        client = self.opened(endpoints=(f"http://{lead.address}", self.etcd.url))
        reader = contract_case.FeedReader(client)
        self.put(client, "a", b"one")
        lead.lose_requests()
        with contextlib.suppress(errors.BackendUnavailable):
            client.head()
        self.put(client, "b", b"two")
        reader.catch_up()
        self.assertEqual(2, len(reader.held))
