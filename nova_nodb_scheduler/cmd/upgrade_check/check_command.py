# SPDX-License-Identifier: Apache-2.0
"""The upgrade check: whether the whole deployment runs the plugin rightly."""

from __future__ import annotations

import datetime
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, bus_calls, configuration, guard
from nova_nodb_scheduler.cmd.overview import (
    deployment,
    node_cells,
    process_reports,
    unkept_servers,
)
from nova_nodb_scheduler.cmd.upgrade_check import (
    checkpoint_judgements,
    judgements,
    worker_judgements,
)
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.placement_adapter import guard_header
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

Code = upgradecheck.Code

#: How a result begins that could not be had.
NOT_KNOWN = "Not known"

#: Of a reading that was late, to say so by itself.
_GRACE_SECONDS = 1.5
_API_REMEDY = "See [api_database] connection"
_PLACEMENT_REMEDY = "See [placement]"
_SERVER_ERRORS = 500

_Read = TypeVar("_Read")
_Check = Callable[["UpgradeChecks"], upgradecheck.Result]


def _stopped_by_errors(check: _Check) -> _Check:
    """Have what a check cannot do without be its result."""

    @functools.wraps(check)
    def checked(self: UpgradeChecks) -> upgradecheck.Result:
        try:
            return check(self)
        except errors.NodbError as error:
            return upgradecheck.Result(Code.FAILURE, _sentence(str(error)))
        except Exception as error:  # noqa: BLE001 - one that fails must not hide the others
            return upgradecheck.Result(Code.FAILURE, guard.describe(error))

    return checked


class UpgradeChecks(upgradecheck.UpgradeCommands):  # type: ignore[misc]
    """The checks, in the order in which an operator mends what they find.

    What they read is asked all at once, each in bounded time: one after the
    other would take the sum of what is dead.
    """

    def begin(self) -> None:
        """Ask everything that the checks will want; without it each asks when it wants."""
        if self.options.synchronizer == "sqlalchemy":
            self._schema()
        for ask in (
            *(self._found, self._services, self._nodes_by_cell, self._node_cells),
            self._placement_headers,
            *((self._unkept_servers,) if self._lets_wait else ()),
        ):
            ask()

    @functools.cached_property
    def plugin(self) -> Any:
        """The plugin of this configuration, not activated.

        :raises ConfigurationError: an option cannot work
        """
        from nova.conf import CONF

        from nova_nodb_scheduler.nova_adapter import assembly

        return assembly.Plugin(CONF)

    @property
    def options(self) -> Any:
        """The plugin's own options."""
        return self.plugin.options

    @property
    def scopes(self) -> Any:
        """The databases of cells and API."""
        return self.plugin.scopes

    @property
    def found(self) -> deployment.Deployment:
        """What back end and schedulers say.

        :raises ConfigurationError: the synchronizer cannot be made
        """
        return self._answer(self._found())

    @property
    def services(self) -> tuple[list[judgements.NovaService], list[str]]:
        """The services of all cells, and what cells could not be read.

        :raises NotReached: nor could the list of cells
        """
        try:
            return self._answer(self._services())
        except errors.NoAnswerInTime as error:
            raise errors.NotReached("Nova's API database", str(error), _API_REMEDY) from error

    # -- what they read -----------------------------------------------------------

    def _answer(self, question: bounded.BoundedQuestion[_Read]) -> _Read:
        return question.answer(self._end.left_seconds())

    @functools.cached_property
    def _end(self) -> bounded.Deadline:
        # What they read is bounded itself; this is for what is bounded by nothing.
        return bounded.Deadline(bounded.LOOK_SECONDS + _GRACE_SECONDS)

    @functools.cached_property
    def _deadline(self) -> bounded.Deadline:
        return bounded.Deadline()

    @functools.cache  # noqa: B019 - one object, as long as the process
    def _found(self) -> bounded.BoundedQuestion[deployment.Deployment]:
        from nova import context

        from nova_nodb_scheduler.nova_adapter import rpc_server

        plugin, options, deadline = self.plugin, self.options, self._deadline
        make = plugin.make_synchronizer

        def read() -> deployment.Deployment:
            line = bus_calls.BusCalls(rpc_server.bus_address(), bounded.CONNECT_SECONDS, deadline)
            client = rpc_server.make_client(plugin, bounded.CONNECT_SECONDS, line.call)
            return deployment.gather(
                process_reports.read_backend_within(make, deadline),
                lambda host: client.get_status(context.get_admin_context(), server=host),
                rpc_server.CALL_ERRORS,
                float(options.reporter_bound_seconds),
                float(options.mirror_bound_seconds),
                float(options.claim_lease_seconds),
            )

        return bounded.BoundedQuestion(read)

    @functools.cache  # noqa: B019
    def _schema(self) -> bounded.BoundedQuestion[list[str]]:
        conf = self.plugin.conf

        def read() -> list[str]:
            from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
                engines,
                migration,
                options,
            )

            settings = options.read(conf)
            engines.require_store(settings)
            # Not a migration's engine: that one is patient.
            engine = engines.create(settings)
            try:
                found: list[str] = migration.check(engine)
                return found
            finally:
                engine.dispose()

        return bounded.BoundedQuestion(read)

    @functools.cache  # noqa: B019
    def _services(
        self,
    ) -> bounded.BoundedQuestion[tuple[list[judgements.NovaService], list[str]]]:
        scopes = self.scopes

        def read() -> tuple[list[judgements.NovaService], list[str]]:
            from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

            bound = bounded.Deadline(bounded.BACKEND_SECONDS)
            asked = {
                cell: bounded.BoundedQuestion(
                    functools.partial(nova_tables.services_of_cell, scopes, cell)
                )
                for cell in nova_tables.readable_cells(scopes)
            }
            found: list[judgements.NovaService] = []
            unread = []
            for cell, question in asked.items():
                try:
                    rows = question.answer(bound.within(bounded.BACKEND_SECONDS))
                except Exception as error:  # noqa: BLE001 - whatever a database driver raises
                    unread.append(f"cell {cell} ({guard.said(error)})")
                else:
                    found += [judgements.NovaService(*row) for row in rows]
            return found, unread

        return bounded.BoundedQuestion(read)

    @functools.cache  # noqa: B019
    def _nodes_by_cell(self) -> bounded.BoundedQuestion[dict[str, int]]:
        make = self.plugin.make_synchronizer
        return bounded.BoundedQuestion(lambda: _count_nodes(make()))

    @functools.cache  # noqa: B019
    def _node_cells(self) -> bounded.BoundedQuestion[list[node_cells.NodeCell]]:
        plugin, scopes = self.plugin, self.scopes

        def read() -> list[node_cells.NodeCell]:
            from nova import objects

            from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

            cells = [
                each
                for each in nova_tables.readable_cells(scopes)
                if each != objects.CellMapping.CELL0_UUID
            ]
            synchronizer = plugin.make_synchronizer()
            try:
                synchronizer.open_existing()
                return node_cells.gather(
                    synchronizer, scopes, cells, node_cells.configured_mode(plugin)
                )
            finally:
                synchronizer.close()

        return bounded.BoundedQuestion(read)

    @functools.cache  # noqa: B019
    def _placement_headers(self) -> bounded.BoundedQuestion[Mapping[str, str]]:
        def read() -> Mapping[str, str]:
            from nova.scheduler.client import report

            # Of its versions, which everybody may read.
            answer = report.report_client_singleton().get("/")
            if answer is None or answer.status_code >= _SERVER_ERRORS:
                said = "nothing" if answer is None else f"status {answer.status_code}"
                raise errors.NotReached("Placement", f"it answers {said}", _PLACEMENT_REMEDY)
            found: Mapping[str, str] = answer.headers
            return found

        return bounded.BoundedQuestion(read)

    @property
    def _lets_wait(self) -> bool:
        return bool(self.plugin.lets_wait and self.scopes.has_api_database())

    @functools.cache  # noqa: B019
    def _unkept_servers(self) -> bounded.BoundedQuestion[Sequence[str]]:
        make = self.plugin.make_synchronizer

        def read() -> Sequence[str]:
            from oslo_utils import timeutils

            from nova_nodb_scheduler.nova_adapter.waiting.waking import build_requests

            old = datetime.timedelta(seconds=unkept_servers.OLD_SECONDS)
            return unkept_servers.find(
                make(), lambda: build_requests.made_before(timeutils.utcnow() - old)
            )

        return bounded.BoundedQuestion(read)

    # -- the checks ---------------------------------------------------------------

    @_stopped_by_errors
    def check_release(self) -> upgradecheck.Result:
        """Is this Nova one the plugin was tested with?"""
        from nova_nodb_scheduler.nova_adapter import start_checks

        start_checks.check_release()
        return upgradecheck.Result(Code.SUCCESS, f"Nova {start_checks.nova_version()}.")

    @_stopped_by_errors
    def check_options(self) -> upgradecheck.Result:
        """Do the options name what exists, and is the servicegroup driver 'db'?"""
        self.plugin.check()
        if not self.plugin.replaces_scheduler():
            return upgradecheck.Result(
                Code.WARNING,
                "[DEFAULT] scheduler_driver is filter_scheduler: states are reported, and "
                "Nova's own scheduler decides.",
            )
        return upgradecheck.Result(Code.SUCCESS, "They name what there is.")

    @_stopped_by_errors
    def check_activation(self) -> upgradecheck.Result:
        """Does nova.conf make services load the plugin?"""
        import oslo_messaging.opts

        from nova_nodb_scheduler.nova_adapter import start_checks

        conf = self.plugin.conf
        # No notifier was made here, so nobody has registered them.
        for group, options in oslo_messaging.opts.list_opts():
            if str(group) == judgements.GROUP:
                conf.register_opts(options, group=judgements.GROUP)
        return judgements.result(
            judgements.judge_activation_line(
                conf[judgements.GROUP].driver, start_checks.written_lines(conf)
            )
        )

    @_stopped_by_errors
    def check_schema(self) -> upgradecheck.Result:
        """Is the back end's schema this release's?"""
        if self.options.synchronizer != "sqlalchemy":
            return upgradecheck.Result(Code.SUCCESS, f"{self.options.synchronizer} has no schema.")
        try:
            findings = self._answer(self._schema())
        except errors.NoAnswerInTime as error:
            return upgradecheck.Result(Code.FAILURE, f"Not known: {error}.")
        return upgradecheck.Result(
            Code.FAILURE if findings else Code.SUCCESS,
            " ".join(findings) or "It is this release's.",
        )

    @_stopped_by_errors
    def check_backend(self) -> upgradecheck.Result:
        """Can the back end be read?"""
        backend = self.found.backend
        if backend.error is not None:
            return upgradecheck.Result(Code.FAILURE, backend.error)
        if backend.unreadable:
            return upgradecheck.Result(
                Code.FAILURE, f"Records cannot be read: {', '.join(backend.unreadable)}."
            )
        return upgradecheck.Result(
            Code.SUCCESS, f"{backend.driver}, {backend.statistics['records']} records."
        )

    @_stopped_by_errors
    def check_services(self) -> upgradecheck.Result:
        """Does every conductor, API and scheduler that is up run the plugin?"""
        if self.found.error is not None:
            return self._unknown()
        services, unread = self.services
        findings = judgements.judge_services(
            services, self.found, expects_schedulers=self.plugin.replaces_scheduler()
        )
        findings += [judgements.warning(f"Services of {each} are not known.") for each in unread]
        return judgements.result([*findings, *judgements.judge_versions(self.found)])

    @_stopped_by_errors
    def check_feed(self) -> upgradecheck.Result:
        """Do reporters and feeds live, and do all schedulers claim or none?"""
        if self.found.error is not None:
            return self._unknown()
        return judgements.result(
            [
                *judgements.judge_reporters(self.found),
                *judgements.judge_feeds(
                    self.found, expects_schedulers=self.plugin.replaces_scheduler()
                ),
                *judgements.judge_claims(self.found),
            ]
        )

    @_stopped_by_errors
    def check_cells(self) -> upgradecheck.Result:
        """Do mappings, reporters and records name the same cells?"""
        if self.found.error is not None:
            return self._unknown()
        services, unread = self.services
        if not self.scopes.has_api_database():
            return upgradecheck.Result(
                Code.WARNING, "Without [api_database] connection cells are not known."
            )
        nodes: dict[str, int] = self._answer(self._nodes_by_cell())
        mapped = bounded.ask(bounded.CONNECT_SECONDS, self.scopes.all_cells)
        return judgements.result(
            [
                *judgements.judge_cells(mapped, services, self.found, nodes),
                *(judgements.warning(f"The database of {each} cannot be read.") for each in unread),
            ]
        )

    @_stopped_by_errors
    def check_heartbeats(self) -> upgradecheck.Result:
        """Does every process know where heartbeats of compute services stand?"""
        if self.found.error is not None:
            return self._unknown()
        services, _ = self.services
        return judgements.result(judgements.judge_heartbeats(services, self.found))

    @_stopped_by_errors
    def check_compute_nodes(self) -> upgradecheck.Result:
        """Does every cell's table of compute nodes stand where its mode has it, and who knows?"""
        if self.found.error is not None:
            return self._unknown()
        cells = self._answer(self._node_cells())
        services, _ = self.services
        return judgements.result(
            [
                *judgements.judge_compute_nodes(cells),
                *judgements.judge_node_services(
                    services, self.found, expects_schedulers=self.plugin.replaces_scheduler()
                ),
            ]
        )

    @_stopped_by_errors
    def check_mirror(self) -> upgradecheck.Result:
        """Is Placement mirrored?"""
        if self.found.error is not None:
            return self._unknown()
        return judgements.result(
            judgements.judge_mirror(
                self.found,
                float(self.options.mirror_bound_seconds),
                wanted=self.plugin.replaces_scheduler() and self.options.candidates == "memory",
            )
        )

    @_stopped_by_errors
    def check_checkpoint(self) -> upgradecheck.Result:
        """Can schedulers keep their checkpoint, and nobody else read it?"""
        directory = self.options.checkpoint_directory
        findings = [
            *checkpoint_judgements.judge_directory(directory),
            *([] if self.found.error else checkpoint_judgements.judge_writers(self.found)),
        ]
        return judgements.result(findings)

    @_stopped_by_errors
    def check_workers(self) -> upgradecheck.Result:
        """Did somebody choose how many scheduler workers hold all hosts?"""
        workers = self.plugin.conf.scheduler.workers
        if not self.plugin.replaces_scheduler():
            return upgradecheck.Result(Code.SUCCESS, "Nova's own scheduler decides.")
        # Whoever chose a number need not be told what others would hold.
        known = None if workers or self.found.error is not None else self.found
        return judgements.result(
            [worker_judgements.judge_workers(workers, os.cpu_count() or 1, known)]
        )

    @_stopped_by_errors
    def check_placement_guard(self) -> upgradecheck.Result:
        """Does the Placement in use keep writers that race from over-committing?"""
        try:
            headers = self._answer(self._placement_headers())
        except Exception as error:  # noqa: BLE001 - whatever keystoneauth raises
            # It is for those who want it, so not knowing of it is nobody's failure.
            return upgradecheck.Result(Code.SUCCESS, _sentence(f"{NOT_KNOWN}: {guard.said(error)}"))
        return judgements.result(
            judgements.judge_guard(
                guard_header.is_in(headers), guard_header.knows_conditions(headers)
            )
        )

    @_stopped_by_errors
    def check_waiting(self) -> upgradecheck.Result:
        """Does somebody keep the request of every server that waits for room?"""
        if not self.plugin.lets_wait:
            return upgradecheck.Result(Code.SUCCESS, "No request waits for room.")
        if not self.scopes.has_api_database():
            return upgradecheck.Result(
                Code.SUCCESS, f"{NOT_KNOWN} without [api_database] connection."
            )
        if self.found.error is not None:
            return self._unknown()
        return judgements.result(
            judgements.judge_unkept_servers(
                self._answer(self._unkept_servers()), unkept_servers.OLD_SECONDS
            )
        )

    def _unknown(self) -> upgradecheck.Result:
        return upgradecheck.Result(Code.FAILURE, f"{NOT_KNOWN} while the back end cannot be read.")

    _upgrade_checks = (
        ("Nova release", check_release),
        ("Options", check_options),
        ("Activation line", check_activation),
        ("Schema of the synchronizer", check_schema),
        ("Synchronizer back end", check_backend),
        ("Services with the plugin", check_services),
        ("Reporters and feeds", check_feed),
        ("Cells", check_cells),
        ("Heartbeats of services", check_heartbeats),
        ("Compute nodes", check_compute_nodes),
        ("Mirror of Placement", check_mirror),
        ("Guard of Placement", check_placement_guard),
        ("Checkpoint of host states", check_checkpoint),
        ("Scheduler workers", check_workers),
        ("Servers that wait", check_waiting),
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _count_nodes(synchronizer: contract.Synchronizer) -> dict[str, int]:
    """Count the compute nodes on the back end by the cell they name."""
    synchronizer.open_existing()
    counts: dict[str, int] = {}
    try:
        for page in synchronizer.snapshot([known_namespaces.COMPUTE_NODES.name]).pages:
            for record in page:
                cell = str(codec.decode(record.payload).state.get("cell"))
                counts[cell] = counts.get(cell, 0) + 1
    finally:
        synchronizer.close()
    return counts


def run(argv: Sequence[str] | None) -> int:
    """Run the check; returns 0 for success, 1 for warnings, 2 for failures.

    :raises ConfigurationMissing: there is no nova.conf
    """
    from nova import config, objects
    from oslo_log import log

    conf = config.CONF
    checks = UpgradeChecks()
    upgradecheck.register_cli_options(conf, checks)
    # What upgradecheck.main() would do, with Nova's own way to read its
    # configuration; no notifiers are made, so nothing activates the plugin.
    upgradecheck.CONF = conf
    arguments = sys.argv[1:] if argv is None else list(argv)
    configuration.fail_soon(conf)
    config.parse_args(["nova-nodb-status", *arguments], init_rpc=False)
    configuration.require_found(conf.config_file or (), conf.config_dir or ())
    nodb.register_opts(conf)
    log.setup(conf, "nova")
    configuration.quiet_standard_error(shown=conf.debug)
    objects.register_all()
    checks.begin()
    # Not upgradecheck.run(): it prints a traceback, and on standard output.
    return int(conf.command.action_fn())
