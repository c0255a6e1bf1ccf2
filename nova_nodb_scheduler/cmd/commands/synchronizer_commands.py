# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage synchronizer: move to another back end, or have one not believed any more."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import rich.progress

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import command, reaching

_PHASES = {
    "copy": "records",
    "copy again": "records, read anew",
    "follow": "changes since",
    "drain": "changes up to the fence",
    "claims": "claims",
}


class SynchronizerMove(command.Command):
    """Carry all records, claims included, from the configured back end to another.

    Services go on working until the records are over. Then the old back end is
    fenced: from that moment services that are configured for it take Nova's own
    path, write nothing and claim nothing, until they are restarted with the new
    configuration; so end the super conductor and the schedulers before, as the
    administrator's guide says under "Moving". Interrupted, the same command
    completes the move; --cancel calls it off.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the target."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--to", required=True, metavar="DRIVER", help="the driver to move to, such as redis"
        )
        parser.add_argument(
            "--to-config",
            metavar="FILE",
            help="a file with the options of the new driver, in its own group (default: the "
            "options stand in the configuration of Nova)",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--check", action="store_true", help="check the target, and change nothing"
        )
        what.add_argument(
            "--cancel",
            action="store_true",
            help="call a move off that did not end: the configured back end serves again",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Move, with progress."""
        from nova_nodb_scheduler.synchronizer import loader
        from nova_nodb_scheduler.synchronizer.migration import migrator

        plugin = self.plugin()

        def make_source() -> Any:
            return loader.load(plugin.options.synchronizer, plugin.conf)

        def new_target() -> Any:
            return make_target(plugin.conf, args.to, args.to_config)

        source, target = make_source(), new_target()
        for make in (make_source, new_target):
            reaching.backend(make)
        skipped = own_namespaces(plugin.declared)
        with self._progress(quiet=args.json) as progress, contextlib.ExitStack() as opened:
            source.open_existing()
            opened.callback(source.close)
            if not args.cancel:
                _require_durable(source, target)
            # What there is to carry is there; where it goes may be new.
            exists = _open_target(target, makes=not args.check)
            opened.callback(target.close)
            mover = migrator.Migrator(source, target, skipped, "--to", progress)
            if args.check:
                check = mover.check if exists else mover.check_source
                check()
                outcome: dict[str, Any] = {"outcome": "can be moved"}
            elif args.cancel:
                called_off = mover.cancel()
                outcome = {"outcome": "called off" if called_off else "no move was under way"}
            else:
                outcome = {"outcome": "moved", **mover.move().as_dict()}
        outcome |= {"from": source.name, "to": target.name}
        if args.json:
            self.print_json(outcome)
        else:
            said = str(outcome["outcome"]).capitalize()
            self.print_line(f"{said}: from {source.name} to {target.name}.")
            if outcome["outcome"] == "moved":
                self.print_line(
                    f"Now set [nodb_scheduler] synchronizer = {target.name} on every service, "
                    "restart the cells' conductors and the API, import, and start the schedulers, "
                    'then the super conductor: see "Moving" in the administrator\'s guide.'
                )
            self.print_facts("Move", outcome)
        return 0

    @contextlib.contextmanager
    def _progress(self, *, quiet: bool) -> Iterator[Any]:
        with rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.TextColumn("{task.completed}"),
            rich.progress.TimeElapsedColumn(),
            console=self.progress_console,
            disable=quiet,
        ) as bars:
            tasks: dict[str, Any] = {}

            def progress(phase: str, count: int) -> None:
                if phase not in tasks:
                    tasks[phase] = bars.add_task(_PHASES[phase], total=None)
                bars.update(tasks[phase], completed=count)

            yield progress


def _open_target(target: Any, *, makes: bool) -> bool:
    """Open where it goes; False where there is nothing yet and nothing shall be made."""
    if makes:
        target.open()
        return True
    try:
        target.open_existing()
    except errors.StoreMissing:
        return False
    return True


def own_namespaces(declared: Any) -> list[str]:
    """Return the namespaces of what the plugin's processes say of themselves."""
    from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

    # When the mirror of Placement was swept is told by another clock, too.
    own = {namespace.name for namespace in declared if namespace.owner == known_namespaces.NODB}
    return sorted(own | {known_namespaces.MIRRORS.name})


def make_target(conf: Any, driver: str, config_file: str | None) -> Any:
    """Return the driver to move to, not opened.

    :param conf: Nova's configuration, which holds its options if no file does
    :raises ConfigurationError: no such driver or file, or its options cannot work
    """
    from oslo_config import cfg

    from nova_nodb_scheduler.conf import nodb
    from nova_nodb_scheduler.synchronizer import loader

    try:
        if config_file is None:
            if driver == conf[nodb.GROUP].synchronizer:
                raise errors.ConfigurationError(
                    "--to",
                    driver,
                    "that is the configured driver: name the other back end's options with "
                    "--to-config",
                )
            return loader.load(driver, conf)
        if not os.path.isfile(config_file):
            raise errors.ConfigurationError("--to-config", config_file, "there is no such file")
        own = cfg.ConfigOpts()
        own(args=[], project="nova", default_config_files=[config_file], default_config_dirs=[])
        return loader.load(driver, own)
    except cfg.Error as error:
        place = "--to-config" if config_file else "--to"
        raise errors.ConfigurationError(place, config_file or driver, str(error)) from error
    except errors.ConfigurationError as error:
        if error.option == loader.OPTION:
            raise errors.ConfigurationError("--to", driver, error.remedy) from error
        raise


OPTION = "--yes"

_FOLLOWS = (
    "Until its records are published again each cell takes Nova's own path; conductors do that by "
    "themselves, and 'nova-nodb-manage import' at once. Run it, and wait until 'nova-nodb-manage "
    "status' says that everything is healthy."
)


def _require_durable(source: Any, target: Any) -> None:
    """Refuse a target that forgets what stands nowhere else.

    :raises ConfigurationError: naming the cells whose compute nodes it would hold
    """
    from nova_nodb_scheduler.nova_adapter.compute_nodes import recorded_modes

    if target.capabilities.durable:
        return
    held = recorded_modes.outside_tables(source)
    if held:
        raise errors.ConfigurationError(
            "--to",
            target.name,
            f"it does not keep records over a restart, and the compute nodes of {', '.join(held)} "
            "stand nowhere else: name a durable back end, or bring them back to Nova's tables "
            "first ('nova-nodb-manage compute-nodes restore')",
        )


def _require_tables(backend: Any) -> None:
    """Refuse to drop records of what stands nowhere else.

    :raises ConfigurationError: naming the cells whose compute nodes it holds
    """
    from nova_nodb_scheduler.nova_adapter.compute_nodes import recorded_modes

    held = recorded_modes.outside_tables(backend)
    if held:
        raise errors.ConfigurationError(
            "synchronizer new-epoch",
            backend.name,
            f"it holds the compute nodes of {', '.join(held)}, which stand nowhere else: bring "
            "them back to Nova's tables first ('nova-nodb-manage compute-nodes restore')",
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

        with reaching.opened(make) as backend:
            outcome = self._begin(backend, asks=not args.yes)
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
        from nova_nodb_scheduler.synchronizer.migration import migration_fence

        reason = migration_fence.closed(backend, migration_fence.read_mark(backend))
        if reason is not None:
            raise reason
        _require_tables(backend)
        former = backend.head().epoch
        outcome = {"driver": backend.name, "former_epoch": former}
        if asks and not self._is_confirmed(backend, former):
            return outcome | {"outcome": "nothing was changed"}
        # They may have gone there while the question was thought over.
        _require_tables(backend)
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
