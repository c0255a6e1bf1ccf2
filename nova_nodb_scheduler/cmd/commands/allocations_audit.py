# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage allocations audit: allocations whose server is not, or not there."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from nova_nodb_scheduler.cmd.framework import (
    command,
    guard,
    number_arguments,
    reaching,
    terminal,
)

#: A process whose last beat is older is gone; as schedulers themselves see it at least.
_SILENT_SECONDS = 30.0
#: Records that are named of those that cannot be read.
_EXAMPLES = 10


class AllocationsAudit(command.Command):
    """Find allocations in Placement without their server; status 1 if there are any.

    Every allocation in the mirror of Placement that no known server or migration explains is
    looked up in Placement, in the API database and in every cell; where no living scheduler keeps
    the mirror, or it is too old, Placement is asked for each provider. Without --delete it only
    reads.

    What it finds: "absent", no build request, instance or migration of that uuid is
    anywhere; "buried in cell0", its server failed before it had a host and waits there for its
    user to delete it; "elsewhere", its server is on another host or on none; "ended
    migration"; "not proved", a database or Placement did not answer or cannot know.
    """

    #: Waits between the two proofs, for some seconds.
    pause = staticmethod(time.sleep)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what is deleted, and when."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--delete",
            action="store_true",
            help="delete those that are absent, and that a scheduler or conductor which is gone "
            "had claimed; each is proved once more before, and deleted with its generation. "
            "All others are left for you to judge",
        )
        parser.add_argument(
            "--wait",
            type=number_arguments.within(float, 0, 3600),
            default=30.0,
            metavar="SECONDS",
            help="with --delete: time between the two proofs; longer than a replica of Nova's "
            "databases lags behind (default: 30)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Audit, and delete where told to."""
        from nova_nodb_scheduler.nova_adapter.orphans import orphan_audit as audit_module
        from nova_nodb_scheduler.nova_adapter.orphans import orphan_verdicts
        from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls

        plugin = self.plugin()
        reaching.cells(plugin)
        placement = reaching.placement()
        with reaching.opened(plugin.make_synchronizer) as synchronizer:
            judge = orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(placement))
            silent_seconds = max(_SILENT_SECONDS, 4 * plugin.options.beat_interval_seconds)
            audit = audit_module.OrphanAudit(
                synchronizer, judge, silent_seconds, float(plugin.options.mirror_bound_seconds)
            )
            rows = self._look(audit, args.json)
            if args.delete and any(row.deletable for row in rows):
                self.pause(args.wait)
                rows = audit.delete(rows)
                _hint(plugin, rows)
        self._show(rows, args.json)
        if audit.unseen:
            guard.say(
                f"{len(audit.unseen)} records cannot be read, and allocations that only they tell "
                f"of were not looked at: {', '.join(audit.unseen[:_EXAMPLES])}"
            )
        return 1 if audit.unseen or any(row.outcome != "deleted" for row in rows) else 0

    def _look(self, audit: Any, as_json: bool) -> list[Any]:
        with self.progress("consumers", quiet=as_json) as bars:
            bar = bars.add_task("allocations", total=audit.count)
            rows: list[Any] = audit.rows(lambda looked: bars.advance(bar, looked))
            return rows

    def _show(self, rows: Sequence[Any], as_json: bool) -> None:
        if as_json:
            self.print_json([row.as_dict() for row in rows])
            return
        left = [row for row in rows if row.outcome != "deleted"]
        deleted = f"; {len(rows) - len(left)} deleted" if len(left) < len(rows) else ""
        self.print_line(f"Allocations without their server: {len(left) or 'none'}{deleted}.")
        self.print_table(
            "What they are",
            (
                terminal.TableColumn("consumer", whole=True),
                *("host", "what", "age s", "deletable"),
                *terminal.wide("resources", "writer"),
            ),
            (
                (
                    row.judged.consumer,
                    ", ".join(row.hosts),
                    row.judged.kind.value,
                    None if row.age_seconds is None else f"{row.age_seconds:.0f}",
                    row.outcome or ("yes" if row.deletable else "no"),
                    ", ".join(
                        f"{name} {amount}"
                        for amounts in row.judged.amounts.values()
                        for name, amount in sorted(amounts.items())
                    ),
                    row.writer or "no claim",
                )
                for row in rows
            ),
        )


def _hint(plugin: Any, rows: Sequence[Any]) -> None:
    """Have the mirror read what was deleted."""
    from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_assembly

    deleted = [row.judged for row in rows if row.outcome == "deleted"]
    if deleted:
        hints = mirror_assembly.hint_writer(plugin)
        hints.hint({name for each in deleted for name in each.amounts})
        hints.stop()
