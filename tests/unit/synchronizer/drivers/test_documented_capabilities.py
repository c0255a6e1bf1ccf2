# SPDX-License-Identifier: Apache-2.0
"""What the documents' tables say of the drivers, against what the drivers declare."""

import pathlib
import re
import unittest

from nova_nodb_scheduler.synchronizer.drivers.etcd import writing as etcd
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.redis import driver as redis
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import writing as sqlalchemy

ROOT = pathlib.Path(__file__).resolve().parents[4]
#: As the columns stand in both tables; memcached offers one key.
ATOMIC_KEYS = (sqlalchemy.MAX_BATCH_KEYS, 1, redis.ATOMIC_KEYS, etcd.ATOMIC_KEYS)


def row(path, title):
    """The cells of a row of a list-table."""
    text = (ROOT / path).read_text()
    return re.findall(r"     - (.*)\n", re.search(rf"   \* - {title}\n((?:     .*\n)+)", text)[1])


class TablesTest(unittest.TestCase):
    def test_keys_in_one_write_are_as_the_drivers_declare(self):
        for path in ("README.rst", "doc/source/admin/drivers.rst"):
            with self.subTest(path=path):
                cells = row(path, "keys in one compare-and-set")
                told = [int(re.sub("one", "1", cell).split()[-1]) for cell in cells[:4]]
                self.assertEqual(list(ATOMIC_KEYS), told)
        self.assertEqual(f"up to {memory.ATOMIC_KEYS}, or one", cells[4])
