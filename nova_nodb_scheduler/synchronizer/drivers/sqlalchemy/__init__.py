# SPDX-License-Identifier: Apache-2.0
"""The synchronizer driver for SQL databases: SQLite, MariaDB / MySQL, PostgreSQL.

The protocol stands in :mod:`.writing`, what is kept in :mod:`.schema`.
"""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import driver, options

SQLAlchemySynchronizer = driver.SQLAlchemySynchronizer
SQLOptions = options.SQLOptions
GROUP = options.GROUP
OPTS = options.OPTS

__all__ = ["GROUP", "OPTS", "SQLAlchemySynchronizer", "SQLOptions"]
