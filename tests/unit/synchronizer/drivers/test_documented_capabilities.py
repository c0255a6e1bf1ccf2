# SPDX-License-Identifier: Apache-2.0
"""What the documents' tables say of the drivers, against what the drivers declare."""

import pathlib
import re
import unittest

from oslo_config import cfg

from nova_nodb_scheduler.synchronizer import loader

ROOT = pathlib.Path(__file__).resolve().parents[4]
#: As the columns stand in both tables; memory has none in the first.
DRIVERS = ("sqlalchemy", "memcached", "redis", "etcd", "memory")


def row(path, title):
    """The cells of a row of a list-table."""
    text = (ROOT / path).read_text()
    return re.findall(r"     - (.*)\n", re.search(rf"   \* - {title}\n((?:     .*\n)+)", text)[1])


class TablesTest(unittest.TestCase):
    def assert_told(self, title, declared):
        """Each cell begins with the word that a driver's capabilities stand for."""
        for path in ("README.rst", "doc/source/admin/drivers.rst"):
            for driver, cell in zip(DRIVERS, row(path, title), strict=False):
                conf = cfg.ConfigOpts()
                conf.register_opt(cfg.StrOpt("state_path", default="/tmp"))
                conf([], default_config_files=[])
                with self.subTest(path=path, driver=driver):
                    word = declared(loader.load(driver, conf).capabilities)
                    self.assertRegex(cell, rf"^(the )?{word}")

    def test_feeds_are_pushed_or_polled_as_the_drivers_declare(self):
        self.assert_told("change feed", lambda capabilities: f"{capabilities.feed.value}e?d")

    def test_leases_end_by_the_clocks_that_the_drivers_declare(self):
        self.assert_told(
            "leases end by the clock of", lambda capabilities: capabilities.clock.value
        )
