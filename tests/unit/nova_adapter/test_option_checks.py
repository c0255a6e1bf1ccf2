# SPDX-License-Identifier: Apache-2.0
"""What an operator reads of a mistake in nova.conf."""

import contextlib
import io
import logging
import pathlib
import tempfile
import unittest
from unittest import mock

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter import start_checks
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as etcd_connection
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures as etcd_failures
from nova_nodb_scheduler.synchronizer.drivers.etcd import options as etcd_options
from nova_nodb_scheduler.synchronizer.drivers.redis import options as redis_options
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as sql_options
from nova_nodb_scheduler.synchronizer.drivers.support import driver_options


class MistakesTest(unittest.TestCase):
    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name, "nova.conf")
        patch = mock.patch.object(start_checks, "_told", set())
        patch.start()
        self.addCleanup(patch.stop)

    def configured(self, text):
        self.path.write_text(text)
        conf = cfg.ConfigOpts()
        conf([], project="nova", default_config_files=[str(self.path)], default_config_dirs=[])
        nodb.register_opts(conf)
        conf.register_opts(sql_options.OPTS, group=sql_options.GROUP)
        conf.register_opts(redis_options.OPTS, group=redis_options.GROUP)
        conf.register_opts(etcd_options.OPTS, group=etcd_options.GROUP)
        return conf

    def refusal(self, refused, *arguments):
        with self.assertRaises(errors.ConfigurationError) as caught:
            refused(*arguments)
        return str(caught.exception)

    def test_a_dollar_in_a_password_is_told_with_its_remedy_and_without_the_password(self):
        cases = (
            ("redis", "password", "pa$word"),
            ("etcd", "password", "${word}"),
            ("etcd", "password", "x$no.group.word"),
            ("sqlalchemy", "connection", "mysql+pymysql://u:pa$word@db/nodb"),
        )
        for driver, option, value in cases:
            [(group, options)] = loader.load_class(driver).list_opts()
            with self.subTest(group=group, value=value):
                conf = self.configured(f"[{group}]\n{option} = {value}\n")
                for text in (
                    self.refusal(loader.load, driver, conf),
                    self.refusal(start_checks.check_options, conf, [(group, options)]),
                ):
                    self.assertIn(f"[{group}] {option}", text)
                    self.assertIn("Write '$$'", text)
                    self.assertNotIn("word ", text.replace("password", ""))

    def test_two_dollars_are_one_of_the_password(self):
        conf = self.configured("[nodb_redis]\npassword = pa$$word\n")
        options = driver_options.read(conf, "nodb_redis", ["password"])
        self.assertEqual({"password": "pa$word"}, options)

    def test_a_default_that_names_an_option_of_nova_is_no_mistake_of_the_operator(self):
        conf = self.configured("")
        start_checks.check_options(conf, [(sql_options.GROUP, sql_options.OPTS)])
        self.assertIn("name the file in full", self.refusal(sql_options.read, conf))

    def test_a_wrong_value_is_told_with_its_file_and_without_a_repr(self):
        conf = self.configured("[nodb_scheduler]\nbeat_interval_seconds = fast\n")
        text = self.refusal(start_checks.check_options, conf, [(nodb.GROUP, nodb.NODB_OPTS)])
        self.assertIn(f"in {self.path} is not valid", text)
        self.assertNotIn("LocationInfo", text)

    def test_a_choice_of_hosts_that_there_is_not_is_refused_by_name(self):
        conf = self.configured("[nodb_scheduler]\nchoice = worst\n")
        text = self.refusal(start_checks.check_options, conf, [(nodb.GROUP, nodb.NODB_OPTS)])
        for word in ("choice", "worst", "best", "two", "random"):
            self.assertIn(word, text)

    def test_a_misspelt_option_is_told_once_with_what_was_meant(self):
        conf = self.configured("[nodb_scheduler]\nsynchroniser = redis\n")
        for handlers in ([], [logging.StreamHandler()]):
            with (
                self.subTest(handlers=handlers),
                mock.patch.object(start_checks, "_told", set()),
                mock.patch.object(logging.getLogger(), "handlers", []),
                contextlib.redirect_stderr(io.StringIO()) as seen,
            ):
                for handler in handlers:
                    handler.setStream(seen)
                    logging.getLogger().addHandler(handler)
                for _ in range(2):
                    start_checks.check_options(conf, [(nodb.GROUP, nodb.NODB_OPTS)])
                lines = seen.getvalue().splitlines()
                self.assertEqual(1, len(lines), lines)
                self.assertIn("[nodb_scheduler] synchroniser", lines[0])
                self.assertIn("is synchronizer meant?", lines[0])

    def test_what_is_like_no_option_is_told_as_well(self):
        conf = self.configured("[nodb_scheduler]\nturbo = true\n")
        found = start_checks.unknown_options(
            start_checks.written(conf), [(nodb.GROUP, nodb.NODB_OPTS)]
        )
        self.assertEqual([("turbo", ())], [(each.name, each.nearest) for each in found])
        self.assertIn("is it misspelt?", str(found[0]))

    def test_etcd_names_the_options_as_they_are_called(self):
        names = {option.name for option in etcd_options.OPTS}
        text = etcd_connection._REMEDIES[etcd_failures.Kind.UNAUTHENTICATED]
        for word in ("username", "password"):
            self.assertIn(word, text)
            self.assertIn(word, names)
