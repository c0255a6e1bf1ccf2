# SPDX-License-Identifier: Apache-2.0
"""The redis driver's configuration: what it refuses, by name and with a remedy."""

from __future__ import annotations

import tempfile
import time
import unittest
from typing import Any

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers import redis
from nova_nodb_scheduler.testing import redis_server, server_processes
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import certificates
from tests.functional.synchronizer.drivers.redis import redis_case

#: What the administration guide asks an operator to grant.
ACL = "+evalsha +eval +info +time +xread +hmget +hget +hset +hdel +hlen +hexists +zadd +zrem"
ACL += " +zcard +zscore +zrangebyscore +xadd +xlen +unlink +select"


class TestOptions(unittest.TestCase):
    """What is wrong whatever the server."""

    def test_addresses_of_every_kind_are_understood(self) -> None:
        for url, expected in (
            ("redis://one", "one:6379/0"),
            ("redis://one:7000/3", "one:7000/3"),
            ("rediss://[::1]:7000", "::1:7000/0"),
            ("unix:///run/redis.sock", "/run/redis.sock/0"),
        ):
            self.assertEqual(expected, str(redis.RedisOptions(url=url).address()))

    def test_bad_options_are_refused_by_name_and_with_a_remedy(self) -> None:
        for name, value, remedy in (
            ("url", "http://one", "redis, rediss, unix"),
            ("url", "redis://one:port", "host:port"),
            ("url", "redis://one/name", "database-number"),
            ("url", "redis://", "name a host"),
            ("url", "unix://", "path"),
            ("url", "redis://one?retry_on_timeout=yes", "leave out"),
            ("key_prefix", "a b", "letters"),
            ("key_prefix", "a{b}", "letters"),
            ("username", "nova", "password"),
            ("tls_cafile", "/ca.pem", "rediss://"),
        ):
            with self.subTest(name=name, value=value):
                text = self._refusal(**{name: value})
                self.assertIn(f"[nodb_redis] {name}", text)
                self.assertIn(remedy, text)
        self.assertIn("tls_keyfile", self._refusal(url="rediss://one", tls_certfile="/a.pem"))

    def test_a_password_is_shown_nowhere(self) -> None:
        self.assertNotIn("secret", self._refusal(url="redis://nova:secret@one"))
        self.assertNotIn("secret", repr(redis.RedisOptions(password="secret")))

    def test_the_loader_finds_the_driver_and_its_options(self) -> None:
        conf = cfg.ConfigOpts()
        driver_class = loader.load_class("redis")
        driver_class.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override("url", "redis://one:7000/3", group="nodb_redis")
        loaded = loader.load("redis", conf)
        self.assertIsInstance(loaded, redis.RedisSynchronizer)
        with self.assertRaises(errors.BackendUnavailable) as caught:
            loaded.head()
        self.assertIn("one:7000/3", str(caught.exception))

    def _refusal(self, **options: Any) -> str:
        with self.assertRaises(errors.ConfigurationError) as caught:
            redis.RedisSynchronizer(redis.RedisOptions(**options))
        return str(caught.exception)


class TestServers(redis_case.RedisCase):
    """What is wrong with a server is told when a client opens."""

    def test_a_server_that_evicts_is_refused(self) -> None:
        server = self.enterContext(
            redis_server.Redis("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
        )
        text = self._refusal(url=server.url)
        self.assertIn("allkeys-lru", text)
        self.assertIn("maxmemory-policy noeviction", text)

    def test_a_replica_is_refused_and_its_primary_named(self) -> None:
        replica = self.enterContext(
            redis_server.Redis("--replicaof", "127.0.0.1", str(self.server.port))
        )
        self.assertIn(self.redis.address, self._refusal(url=replica.url))

    def test_another_clouds_prefix_is_refused_and_left_as_it_is(self) -> None:
        client = self.opened(cloud_name="east")
        written = self.put(client, "a", b"one")
        for name in ("west", ""):
            text = self._refusal(cloud_name=name)
            self.assertIn("'east'", text)
            self.assertIn(repr(name), text)
        self.assertEqual({written.key: written}, contract_case.everything(client))

    def test_keys_of_another_format_are_refused_and_left_as_they_are(self) -> None:
        self.put(self.client(), "a", b"one")
        raw = self.raw()
        raw.hset("{nodb}:meta", "format", "99")
        self.assertIn("format 99", self._refusal())
        self.assertEqual(1, raw.hlen("{nodb}:records"))

    def test_keys_of_somebody_else_are_refused_and_left_as_they_are(self) -> None:
        raw = self.raw()
        raw.set("{nodb}:meta", "not ours")
        self.assertIn("[nodb_redis] key_prefix", self._refusal())
        self.assertEqual(b"not ours", raw.get("{nodb}:meta"))

    def test_a_database_that_is_not_there_is_refused(self) -> None:
        self.assertIn("database", self._refusal(url=f"{self.redis.url}99"))

    def test_a_cluster_of_one_node_will_do_and_a_node_without_the_slot_is_refused(self) -> None:
        # By default the cluster's own port is 10,000 higher, which may not exist.
        bus = ("--cluster-port", str(server_processes.free_port()))
        node = self.enterContext(redis_server.Redis("--cluster-enabled", "yes", *bus))
        self.assertIn("without cluster mode", self._refusal(url=node.url))
        with node.server.client() as raw:
            raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            self.eventually(
                lambda: "cluster_state:ok" in str(raw.execute_command("CLUSTER", "INFO")),
                "the cluster is up",
            )
        client = self.opened(url=node.url)
        written = self.put(client, "a", b"one")
        self.assertEqual({written.key: written}, contract_case.everything(client))

    def test_two_prefixes_share_a_server_without_meeting(self) -> None:
        one, two = self.client(), self.opened(key_prefix="two", cloud_name="two")
        written = self.put(one, "a", b"one")
        self.assertEqual({}, contract_case.everything(two))
        two.reset()
        self.assertEqual({written.key: written}, contract_case.everything(one))

    def test_a_unix_socket_will_do(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory(dir="/tmp"))
        path = f"{directory}/redis.sock"
        self.enterContext(redis_server.Redis("--unixsocket", path))
        client = self.opened(url=f"unix://{path}")
        written = self.put(client, "a", b"one")
        self.assertEqual({written.key: written}, contract_case.everything(client))

    def test_a_server_that_is_not_there_is_unavailable_and_not_refused(self) -> None:
        port = server_processes.free_port()
        with self.assertRaises(errors.BackendUnavailable) as caught:
            self.make(url=f"redis://127.0.0.1:{port}").open()
        self.assertIn(str(port), str(caught.exception))

    def test_names_that_would_be_mistaken_are_refused_before_anything_is_sent(self) -> None:
        client = self.opened()
        for name in ("a\x1fb", "a\nb", "k" * 5000):
            [refused] = client.write([records.Write(contract_case.key(name), 0)])
            self.assertIs(records.Verdict.REFUSED, refused.verdict)
        self.assertEqual({}, contract_case.everything(client))

    def test_an_idle_waiter_costs_two_commands_per_check(self) -> None:
        client, raw = self.opened(wake_check_seconds=0.2), self.raw()
        head = client.head()
        before = raw.info("stats")["total_commands_processed"]
        client.wait(head, 1.0)
        commands = raw.info("commandstats")
        self.assertLessEqual(commands["cmdstat_xread"]["calls"], 6)
        self.assertLess(raw.info("stats")["total_commands_processed"] - before, 100)

    def test_a_batch_of_writes_is_one_call(self) -> None:
        client, raw = self.client(), self.raw()
        self.fill(client, 500)
        self.assertEqual(1, self._calls_of(raw, lambda: self._rewrite(client)))

    def _rewrite(self, client: redis.RedisSynchronizer) -> None:
        standing = contract_case.everything(client).values()
        before = self.raw().info("commandstats")["cmdstat_evalsha"]["calls"]
        client.write([records.Write(each.key, each.revision, b"new") for each in standing])
        self._before = before

    def _calls_of(self, raw: Any, action: Any) -> int:
        action()
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"]) - self._before

    def _refusal(self, **options: Any) -> str:
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.make(**options).open()
        return str(caught.exception)


class TestCredentials(redis_case.RedisCase):
    """A server that asks who is there."""

    options = ("--requirepass", "right")

    def make(self, **changes: Any) -> redis.RedisSynchronizer:
        return super().make(**{"password": "right", **changes})

    def test_the_right_password_opens(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        self.assertEqual({written.key: written}, contract_case.everything(client))

    def test_wrong_and_missing_credentials_are_refused(self) -> None:
        for changes in (
            {"password": "wrong"},
            {"password": None},
            {"username": "nobody", "password": "right"},
        ):
            with self.subTest(**changes):
                text = self._refusal(**changes)
                self.assertIn("correct 'username' and 'password'", text)
                self.assertNotIn("right'", text)

    def test_the_rights_the_guide_asks_for_are_enough(self) -> None:
        self._user(ACL)
        client = self.opened(username="nova", password="own")
        record = self.put(client, "a", b"one")
        head = client.head()
        tombstone = self.drop(client, record)
        self.assertEqual((tombstone,), self.changes(client, head).records)
        self.assertFalse(client.wait(client.head(), 0.1))
        time.sleep(0.01)
        self.assertEqual(1, client.collect(0.0).tombstones)
        client.statistics()
        client.now_seconds()
        client.reset()
        self.assertEqual({}, contract_case.everything(client))

    def test_a_user_without_a_right_is_refused_with_the_servers_word(self) -> None:
        self._user(ACL.replace("+xadd", ""))
        self.assertIn("grant the commands", self._refusal(username="nova", password="own"))

    def test_a_user_of_other_keys_is_refused(self) -> None:
        self._user(ACL, keys="~{other}:*")
        self.assertIn("grant the commands", self._refusal(username="nova", password="own"))

    def _user(self, rights: str, keys: str = "~{nodb}:*") -> None:
        with self.server.client(password="right") as raw:
            raw.execute_command("ACL", "SETUSER", "nova", "on", ">own", keys, *rights.split())

    def _refusal(self, **options: Any) -> str:
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.make(**options).open()
        return str(caught.exception)


class TestTLS(certificates.WithCertificates, contract_case.Case):
    """A server that speaks TLS, with a certificate of a test's own authority."""

    def setUp(self) -> None:
        super().setUp()
        self.redis = self.enterContext(redis_server.Redis(tls_directory=self.directory))

    def make(self, **changes: Any) -> redis.RedisSynchronizer:
        settings = {
            "url": self.redis.url,
            "tls_cafile": f"{self.directory}/ca.pem",
            "timeout_seconds": 2.0,
        }
        return redis.RedisSynchronizer(redis.RedisOptions(**{**settings, **changes}))

    def make_synchronizer(self) -> redis.RedisSynchronizer:
        return self.make()

    def test_a_trusted_certificate_is_accepted_and_records_are_kept(self) -> None:
        written = self.put(self.client(), "a", b"one")
        self.assertEqual({written.key: written}, contract_case.everything(self.client()))

    def test_a_certificate_of_our_own_may_be_shown(self) -> None:
        client = self.make(
            tls_certfile=f"{self.directory}/server.pem",
            tls_keyfile=f"{self.directory}/server.key",
        )
        client.open()
        client.close()

    def test_a_certificate_nobody_trusts_is_refused(self) -> None:
        self._assert_refused(tls_cafile=f"{self.directory}/other.pem")

    def test_a_certificate_of_another_host_is_refused(self) -> None:
        self._assert_refused(url=self.redis.url.replace("127.0.0.1", "localhost"))

    def test_a_missing_file_is_refused(self) -> None:
        self._assert_refused(tls_cafile="/nowhere/ca.pem")

    def test_tls_to_a_port_with_plain_text_is_told(self) -> None:
        plain = self.enterContext(redis_server.Redis())
        client = self.make(url=plain.url.replace("redis:", "rediss:"))
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.open()
        self.assertIn("does the port speak TLS?", str(caught.exception))

    def test_plain_text_to_a_port_with_tls_is_told(self) -> None:
        client = self.make(url=self.redis.url.replace("rediss:", "redis:"), tls_cafile=None)
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.open()
        self.assertIn("rediss://", str(caught.exception))

    def _assert_refused(self, **changes: Any) -> None:
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.make(**changes).open()
        self.assertIn("TLS failed", str(caught.exception))
        self.assertIn("tls_cafile", str(caught.exception))
