# SPDX-License-Identifier: Apache-2.0
"""What compute services that do nothing cost the databases of their cells.

nova-compute has no database of its own: its conductor sends its statements. What the conductors
send for themselves (their own heartbeats, and with the plugin the sweeps of their cells) is told
apart where it can be: heartbeats are left out, sweeps stand under the tables that they read.
"""

import collections
import time
from collections.abc import Collection, Mapping

import attrs

from tools.stack import stack as stack_module
from tools.stack.counts import sql_statements

#: The periodic tasks of nova-compute that look at tables come once a minute.
LEAST_SECONDS = 60.0


@attrs.frozen
class IdleStatements:
    """Statements on the cells' databases while nothing happens.

    ``by_table`` is per compute service and minute; a statement on two tables counts with the first.
    """

    seconds: float
    computes: int
    by_table: Mapping[str, float]

    @property
    def total(self) -> float:
        """Return the sum, per compute service and minute."""
        return sum(self.by_table.values())


def measure(stack: stack_module.Stack, seconds: float) -> IdleStatements:
    """Count for some time; blocks for it.

    :raises ValueError: it is too short to meet each periodic task
    """
    if seconds < LEAST_SECONDS:
        raise ValueError(f"count for {LEAST_SECONDS:.0f} s at least, not for {seconds:.0f} s")
    begin = time.monotonic()
    with sql_statements.Counter(stack.settings) as counter:
        time.sleep(seconds)
    elapsed = time.monotonic() - begin
    settings = stack.settings
    return of_report(counter.report, settings.cell_databases, settings.computes, elapsed)


def of_report(
    report: sql_statements.Report, databases: Collection[str], computes: int, seconds: float
) -> IdleStatements:
    """Return what a count of statements says of the computes of some databases."""
    found: collections.Counter[str] = collections.Counter()
    for statement, count in report.counts.items():
        if statement.database in databases and statement.tables and not statement.is_heartbeat:
            found[statement.tables[0]] += count
    minutes = seconds / 60
    by_table = {table: count / computes / minutes for table, count in found.most_common()}
    return IdleStatements(round(seconds, 1), computes, by_table)
