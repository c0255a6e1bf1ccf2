# SPDX-License-Identifier: Apache-2.0
"""The upgrade check: whether the whole deployment runs the plugin rightly."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import backend_records, deployment, upgrade_checks
from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

Code = upgradecheck.Code

#: How a result begins that could not be had.
NOT_KNOWN = "Not known"

#: A scheduler that is asked answers within this, or is named.
_TIMEOUT_SECONDS = 5.0

_Check = Callable[["Checks"], upgradecheck.Result]


def _stopped_by_errors(check: _Check) -> _Check:
    """Have an error that a check cannot do without be its result."""

    @functools.wraps(check)
    def checked(self: Checks) -> upgradecheck.Result:
        try:
            return check(self)
        except errors.NodbError as error:
            return upgradecheck.Result(Code.FAILURE, str(error))

    return checked


class Checks(upgradecheck.UpgradeCommands):  # type: ignore[misc]
    """The checks, in the order in which an operator mends what they find."""

    @functools.cached_property
    def plugin(self) -> Any:
        """The plugin of this configuration, not activated.

        :raises ConfigurationError: an option cannot work
        """
        from nova.conf import CONF

        from nova_nodb_scheduler.nova_adapter import assembly

        return assembly.Plugin(CONF)

    @functools.cached_property
    def found(self) -> deployment.Deployment:
        """What back end and schedulers say, read once.

        :raises ConfigurationError: the synchronizer cannot be made
        """
        from nova import context

        from nova_nodb_scheduler.nova_adapter import rpc_server

        client = rpc_server.make_client(self.plugin, _TIMEOUT_SECONDS)
        return deployment.gather(
            backend_records.read(self.plugin.make_synchronizer()),
            lambda host: client.get_status(context.get_admin_context(), server=host),
            rpc_server.CALL_ERRORS,
            float(self.plugin.options.reporter_bound_seconds),
            float(self.plugin.options.mirror_bound_seconds),
        )

    @functools.cached_property
    def services(self) -> tuple[list[upgrade_checks.Service], list[str]]:
        """The services of all cells, and what cells could not be read."""
        from nova_nodb_scheduler.nova_adapter import service_tables

        found, unread = service_tables.read(self.plugin.scopes)
        return [upgrade_checks.Service(*each) for each in found], unread

    # -- the checks ---------------------------------------------------------------

    @_stopped_by_errors
    def check_release(self) -> upgradecheck.Result:
        """Is this Nova one the plugin was tested with?"""
        from nova_nodb_scheduler.nova_adapter import releases

        releases.check()
        return upgradecheck.Result(Code.SUCCESS, f"Nova {releases.nova_version()}.")

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
    def check_schema(self) -> upgradecheck.Result:
        """Is the back end's schema this release's?"""
        if self.plugin.options.synchronizer != "sqlalchemy":
            return upgradecheck.Result(
                Code.SUCCESS, f"{self.plugin.options.synchronizer} has no schema."
            )
        from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
            engines,
            migration,
            options,
        )

        settings = options.read(self.plugin.conf)
        engines.require_store(settings)
        engine = engines.create_for_migration(settings)
        try:
            findings = migration.check(engine)
        finally:
            engine.dispose()
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
        if self.found.backend.error is not None:
            return self._unknown()
        services, unread = self.services
        findings = upgrade_checks.judge_services(
            services, self.found, expects_schedulers=self.plugin.replaces_scheduler()
        )
        findings += [
            upgrade_checks.Finding(Code.WARNING, f"Services of {each} are not known.")
            for each in unread
        ]
        return upgrade_checks.result([*findings, *upgrade_checks.judge_versions(self.found)])

    @_stopped_by_errors
    def check_feed(self) -> upgradecheck.Result:
        """Do reporters and feeds live, and do all schedulers claim or none?"""
        if self.found.backend.error is not None:
            return self._unknown()
        return upgrade_checks.result(
            [
                *upgrade_checks.judge_reporters(self.found),
                *upgrade_checks.judge_feeds(
                    self.found, expects_schedulers=self.plugin.replaces_scheduler()
                ),
                *upgrade_checks.judge_claims(self.found),
            ]
        )

    @_stopped_by_errors
    def check_cells(self) -> upgradecheck.Result:
        """Do mappings, reporters and records name the same cells?"""
        if self.found.backend.error is not None:
            return self._unknown()
        services, unread = self.services
        if not self.plugin.scopes.has_api_database():
            return upgradecheck.Result(
                Code.WARNING, "Without [api_database] connection cells are not known."
            )
        findings = upgrade_checks.judge_cells(
            self.plugin.scopes.all_cells(),
            services,
            self.found,
            _nodes_by_cell(self.plugin.make_synchronizer()),
        )
        findings += [
            upgrade_checks.Finding(Code.WARNING, f"The database of {each} cannot be read.")
            for each in unread
        ]
        return upgrade_checks.result(findings)

    @_stopped_by_errors
    def check_mirror(self) -> upgradecheck.Result:
        """Is Placement mirrored?"""
        if self.found.backend.error is not None:
            return self._unknown()
        options = self.plugin.options
        return upgrade_checks.result(
            upgrade_checks.judge_mirror(
                self.found,
                float(options.mirror_bound_seconds),
                wanted=self.plugin.replaces_scheduler() and options.candidates == "memory",
            )
        )

    def _unknown(self) -> upgradecheck.Result:
        return upgradecheck.Result(Code.FAILURE, f"{NOT_KNOWN} while the back end cannot be read.")

    _upgrade_checks = (
        ("Nova release", check_release),
        ("Options", check_options),
        ("Schema of the synchronizer", check_schema),
        ("Synchronizer back end", check_backend),
        ("Services with the plugin", check_services),
        ("Reporters and feeds", check_feed),
        ("Cells", check_cells),
        ("Mirror of Placement", check_mirror),
    )


def _nodes_by_cell(synchronizer: contract.Synchronizer) -> dict[str, int]:
    """Count the compute nodes on the back end by the cell they name."""
    synchronizer.open_existing()
    counts: dict[str, int] = {}
    try:
        for page in synchronizer.snapshot([namespaces.COMPUTE_NODES.name]).pages:
            for record in page:
                cell = str(codec.decode(record.payload).state.get("cell"))
                counts[cell] = counts.get(cell, 0) + 1
    finally:
        synchronizer.close()
    return counts


def run(argv: Sequence[str] | None) -> int:
    """Run the check; returns 0 for success, 1 for warnings, 2 for failures."""
    from nova import config, objects
    from oslo_log import log

    conf = config.CONF
    upgradecheck.register_cli_options(conf, Checks())
    # What upgradecheck.main() would do, with Nova's own way to read its
    # configuration; no notifiers are made, so nothing activates the plugin.
    upgradecheck.CONF = conf
    arguments = sys.argv[1:] if argv is None else list(argv)
    config.parse_args(["nova-nodb-status", *arguments], init_rpc=False)
    nodb.register_opts(conf)
    log.setup(conf, "nova")
    objects.register_all()
    return int(upgradecheck.run(conf))
