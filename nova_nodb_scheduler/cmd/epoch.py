# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage synchronizer new-epoch: what the back end holds is not to be believed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import command, reaching

OPTION = "--yes"

_FOLLOWS = (
    "Until its records are published again each cell takes Nova's own path; conductors do that by "
    "themselves, and 'nova-nodb-manage import' at once. Run it, and wait until 'nova-nodb-manage "
    "status' says that everything is healthy."
)


class NewEpoch(command.Command):
    """Drop all records of the configured back end, claims included, and begin a new epoch.

    For a back end whose disk was set back to a former state, or a backup of which was restored,
    while no service that had seen the later state was running: nothing in it tells of that. It is
    safe while services run. They read everything again, take Nova's own path for each cell until
    its records were published again, and a write that was on its way is lost.

    Not for a back end from which the records were moved: that one serves no more.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what takes the place of the question."""
        parser = super().get_parser(prog_name)
        parser.add_argument(OPTION, action="store_true", help="do it, without asking")
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Say what is there, ask, and do it."""
        from nova_nodb_scheduler.synchronizer import loader

        plugin = self.plugin()

        def make() -> Any:
            return loader.load(plugin.options.synchronizer, plugin.conf)

        reaching.backend(make)
        backend = make()
        backend.open_existing()
        try:
            outcome = self._begin(backend, asks=not args.yes)
        finally:
            backend.close()
        if args.json:
            self.print_json(outcome)
        else:
            if outcome["outcome"] == "begun":
                self.print_line(f"A new epoch has begun. {_FOLLOWS}")
            else:
                self.print_line("Nothing was changed.")
            self.print_facts("Epoch", outcome)
        return 0

    def _begin(self, backend: Any, *, asks: bool) -> dict[str, Any]:
        from nova_nodb_scheduler.synchronizer import moving

        reason = moving.closed(backend, moving.read_mark(backend))
        if reason is not None:
            raise reason
        former = backend.head().epoch
        outcome = {"driver": backend.name, "former_epoch": former}
        if asks and not self._is_confirmed(backend, former):
            return outcome | {"outcome": "nothing was changed"}
        backend.reset()
        return outcome | {"outcome": "begun", "epoch": backend.head().epoch}

    def _is_confirmed(self, backend: Any, former: str) -> bool:
        if not sys.stdin.isatty():
            raise errors.ConfigurationError(
                OPTION, "not given", "there is nobody to ask: give it where this is meant."
            )
        counted = backend.statistics().get("records", "all")
        self.progress_console.print(
            f"{backend.name} holds {counted} records in epoch {former}. They will be dropped, with "
            f"all claims. {_FOLLOWS}",
            soft_wrap=True,
        )
        return self.progress_console.input("Type 'yes' to go on: ").strip() == "yes"
