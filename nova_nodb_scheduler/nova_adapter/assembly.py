# SPDX-License-Identifier: Apache-2.0
"""Puts the plugin together from Nova's configuration: the one place that reads it.

Both ways of switching on (the line in nova.conf, the explicit commands) come
here. Nothing does I/O before something is started.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import pathlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import prometheus_client
from keystoneauth1 import exceptions as keystone
from keystoneauth1 import identity, loading
from nova import objects
from nova.scheduler.client import report
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts
from stevedore import driver as stevedore_driver

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import nodb, queue_options, zaqar_options
from nova_nodb_scheduler.nova_adapter import start_checks
from nova_nodb_scheduler.nova_adapter.claims import (
    alternate_hosts,
    unjudged_claims,
    worker_claims,
)
from nova_nodb_scheduler.nova_adapter.claims import outside_claims as outside_claims_module
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import mirror_guard, node_serving
from nova_nodb_scheduler.nova_adapter.decisions import (
    claim_upkeep,
    decision_assembly,
    late_requests,
)
from nova_nodb_scheduler.nova_adapter.liveness import (
    heartbeat_modes,
    heartbeat_reader,
    heartbeat_writer,
    service_heartbeats,
    standstill_watch,
)
from nova_nodb_scheduler.nova_adapter.placement.allocations import verification, write_turns
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_assembly, tree_publisher
from nova_nodb_scheduler.nova_adapter.reporting import (
    cell_sweeper,
    change_reporter,
    journal_keeper,
    journal_watch,
    journal_writer,
)
from nova_nodb_scheduler.nova_adapter.reporting import row_publisher as row_publisher_module
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module
from nova_nodb_scheduler.nova_adapter.reporting import sweep_duty as sweep_duty_module
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.nova_adapter.waiting import (
    abandoned_requests,
    request_payload,
    request_records,
    requests_in_hand,
    wait_policy,
    waiting_api,
    waiting_conductor,
)
from nova_nodb_scheduler.nova_adapter.waiting.tenants import tenant_events as events_module
from nova_nodb_scheduler.nova_adapter.waiting.tenants import zaqar_queues
from nova_nodb_scheduler.nova_adapter.waiting.waking import (
    pending_plans,
    queue_desk,
    queue_notifications,
    queue_runtime,
)
from nova_nodb_scheduler.observe import (
    conductor_metrics,
    exporter,
    process_metrics,
    tenant_event_metrics,
)
from nova_nodb_scheduler.scheduling.facts import group_members, journal_follower
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.store import declarations, store_snapshot
from nova_nodb_scheduler.synchronizer import contract, loader
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract
from nova_nodb_scheduler.synchronizer.claims import group_places, ledger_claimer
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims
from nova_nodb_scheduler.wire import decoded_sizes

LOG = logging.getLogger(__name__)

SCHEDULER_DRIVERS = "nova.scheduler.driver"
HOST_MANAGERS = "nova.scheduler.host_manager"

#: Value of ``scheduler_driver`` that means Nova's own scheduler.
STOCK = "filter_scheduler"
#: Value of ``scheduler_driver`` with which requests may wait for room.
QUEUE = "nodb_queue"


def plugin_version() -> str:
    """Return this package's version."""
    return importlib.metadata.version("nova-nodb-scheduler")


class Plugin:
    """The plugin in one process, for one configuration.

    :param conf: Nova's configuration, parsed
    """

    def __init__(self, conf: Any) -> None:
        nodb.register_opts(conf)
        self.conf = conf
        self.options = conf[nodb.GROUP]
        self.scopes = scopes_module.Scopes(conf)
        self.declared = declarations.load_namespaces(known_namespaces.BUILT_IN)
        #: Of a process that has metrics; given a namespace and a number of records.
        self._count_refused: Callable[[str, int], None] = lambda namespace, count: None
        #: By which name this process's conductor takes claims; empty where none does.
        self._claims_as = ""
        self._waiting_conductor: waiting_conductor.WaitingConductor | None = None
        self._compute_nodes: mirror_guard.MirrorGuard | node_serving.NodeServing | None = None

    # -- checks without I/O -----------------------------------------------------

    def check(self) -> None:
        """Refuse what cannot work, by name.

        :raises UnsupportedRelease: this Nova was not tested
        :raises ConfigurationError: an option names something unknown
        """
        start_checks.check_release()
        start_checks.check_options(
            self.conf,
            [(nodb.GROUP, nodb.NODB_OPTS), (queue_options.GROUP, queue_options.QUEUE_OPTS)],
        )
        choices = [STOCK, *loader.installed(SCHEDULER_DRIVERS)]
        _choice("[DEFAULT] scheduler_driver", self.conf.scheduler_driver, choices)
        _choice(
            "[DEFAULT] scheduler_host_manager",
            self.conf.scheduler_host_manager,
            loader.installed(HOST_MANAGERS),
        )
        driver = loader.load_class(self.options.synchronizer)
        driver.register_opts(self.conf)
        start_checks.check_options(self.conf, start_checks.options_of(driver))
        for name in ("feed_bound_seconds", "reporter_bound_seconds"):
            least = 3 * self.options.beat_interval_seconds
            if self.options[name] < least:
                raise errors.ConfigurationError(
                    f"[{nodb.GROUP}] {name}",
                    self.options[name],
                    f"set it to at least {least:g}, three times beat_interval_seconds: one "
                    "late beat must not send a cell to its database",
                )
        if self.options.mirror_bound_seconds < 2 * self.options.mirror_sweep_interval_seconds:
            raise errors.ConfigurationError(
                f"[{nodb.GROUP}] mirror_bound_seconds",
                self.options.mirror_bound_seconds,
                f"set it to at least {2 * self.options.mirror_sweep_interval_seconds:g}, twice "
                "mirror_sweep_interval_seconds: one slow sweep must not send every request to "
                "Placement",
            )
        if self.options.claim_lease_seconds <= self.options.claim_deadline_seconds:
            raise errors.ConfigurationError(
                f"[{nodb.GROUP}] claim_lease_seconds",
                self.options.claim_lease_seconds,
                f"set it above {self.options.claim_deadline_seconds:g}, which is "
                "claim_deadline_seconds: a claim must outlast the slowest write of an allocation",
            )
        if self.conf.servicegroup_driver != "db":
            raise errors.ConfigurationError(
                "[DEFAULT] servicegroup_driver",
                self.conf.servicegroup_driver,
                "the plugin learns from heartbeats which services live, and only the driver "
                "'db' writes them. Set it to db on all services, or remove the plugin's lines",
            )
        if self.options.heartbeat_journals:
            self._check_journals()
        if self.lets_wait:
            self._check_waiting()
        if self._node_mode is not cell_modes.NodeMode.MIRROR:
            own = self.conf.database.connection
            node_serving.refuse_unfit(
                self._node_mode, self.make_synchronizer(), [own] if own else []
            )
        if self.conf[queue_options.GROUP].zaqar_queue:
            self._zaqar_queues()

    def _check_waiting(self) -> None:
        """Refuse what would lose requests that wait, or could not read them."""
        self.payload_cipher()
        self.wait_settings()
        if not self.make_synchronizer().capabilities.durable:
            raise errors.ConfigurationError(
                f"[{nodb.GROUP}] synchronizer",
                self.options.synchronizer,
                f"with scheduler_driver = {QUEUE} requests that wait are kept there: choose a "
                "driver whose writes survive a restart, sqlalchemy or etcd",
            )

    def _check_journals(self) -> None:
        """Refuse journals of heartbeats that could never be written, or would have no room."""
        option = f"[{nodb.GROUP}] heartbeat_journals"
        if self._heartbeat_mode is heartbeat_modes.HeartbeatMode.STORE:
            raise errors.ConfigurationError(
                option,
                True,
                "with service_heartbeats = store nobody writes rows, which APIs and conductors "
                "read beside journals: set one of them back",
            )
        seconds = float(self.options.heartbeat_flush_interval_seconds)
        if not self._ring_options.has_room(seconds):
            raise errors.ConfigurationError(
                option,
                True,
                f"with service_down_time = {self.conf.service_down_time} a journal reaches "
                f"{self._ring_options.keep_seconds:g} s back, more than "
                f"{self._ring_options.max_slots} flushes: raise heartbeat_flush_interval_seconds, "
                f"which is {seconds:g}, or leave it off",
            )

    def check_scheduler(self) -> None:
        """Refuse to run the scheduler with what cannot work; see :meth:`check`."""
        self.check()
        if self.lets_wait and self.options.candidates != "memory":
            raise errors.ConfigurationError(
                f"[{nodb.GROUP}] candidates",
                self.options.candidates,
                f"set it to memory: with scheduler_driver = {QUEUE} whom an event helps is told "
                "from the mirror of Placement",
            )
        self.make_synchronizer()

    def replaces_scheduler(self) -> bool:
        """Tell whether nova-scheduler shall run one of the plugin's schedulers."""
        return bool(self.conf.scheduler_driver != STOCK)

    @property
    def lets_wait(self) -> bool:
        """Whether requests may wait for room in this cloud."""
        return bool(self.conf.scheduler_driver == QUEUE)

    def queue_settings(self) -> queue_settings.QueueSettings:
        """Return what the order of requests that wait obeys.

        :raises ConfigurationError: an option has a value that cannot work
        """
        options = self.conf[queue_options.GROUP]
        return queue_settings.QueueSettings(
            classes=queue_settings.parse_classes(options.classes),
            default_class=options.default_class,
            project_weights=queue_settings.parse_weights(options.project_weights),
            order=queue_settings.Order(options.order),
            discipline=queue_settings.Discipline(options.discipline),
            aging_seconds=options.aging_seconds,
            hold_after_seconds=options.hold_after_seconds,
            hold_seconds=options.hold_seconds,
            max_pending=options.max_pending,
            max_pending_per_project=options.max_pending_per_project,
            lease_seconds=options.lease_seconds,
            least_backoff_seconds=options.least_backoff_seconds,
            most_backoff_seconds=options.most_backoff_seconds,
        )

    def queue(
        self, runtime: runtime_module.SchedulerRuntime, notifier: Any
    ) -> queue_runtime.QueueRuntime:
        """Return what wakes requests that wait, not started.

        :param notifier: Nova's, of the unversioned format; None where nobody hears it
        """
        decisions = runtime.decisions
        assert decisions is not None  # see check_scheduler
        observed = () if notifier is None else (queue_notifications.QueueNotifications(notifier),)
        granted = () if self.tenant_events is None else (self.tenant_events,)
        return queue_runtime.QueueRuntime(
            runtime,
            decisions,
            self._payload_reader,
            queue_runtime.QueueOptions(
                settings=self.queue_settings(),
                max_wait_seconds=float(self.conf[queue_options.GROUP].max_wait_seconds),
                silent_scheduler_seconds=self._silent_scheduler_seconds,
            ),
            queue_runtime.QueueSinks(granted=granted, observed=observed),
        )

    def queue_desk(self, runtime: runtime_module.SchedulerRuntime) -> queue_desk.QueueDesk:
        """Return what answers operators who ask of requests that wait."""
        if runtime.queue is not None:
            found: queue_desk.QueueDesk = runtime.queue.desk
            return found
        lease_seconds = float(self.conf[queue_options.GROUP].lease_seconds)
        return queue_runtime.make_desk(runtime, lease_seconds)

    def payload_cipher(self) -> request_payload.PayloadCipher:
        """Return what encrypts requests that wait.

        :raises ConfigurationError: there is no key, or none that can be used
        """
        return request_payload.PayloadCipher(self.conf[queue_options.GROUP].key)

    def wait_settings(self) -> wait_policy.WaitSettings:
        """Return who may wait for room.

        :raises ConfigurationError: an option has a value that cannot work
        """
        options = self.conf[queue_options.GROUP]
        return wait_policy.WaitSettings(
            queue=self.queue_settings(),
            default_wait_seconds=options.default_wait_seconds,
            project_wait_seconds=wait_policy.parse_projects(options.project_wait_seconds),
            max_wait_seconds=options.max_wait_seconds,
        )

    def waiting_conductor(self) -> waiting_conductor.WaitingConductor | None:
        """Return what lets a conductor's requests wait, not started; None where none may."""
        if not self.lets_wait:
            return None
        synchronizer = self.make_synchronizer()
        records = self._request_records(synchronizer, "conductor")
        made = waiting_conductor.WaitingConductor(
            records,
            requests_in_hand.RequestsInHand(synchronizer, records.ledger),
            self.wait_settings(),
            abandoned_requests.AbandonedRequests(report.report_client_singleton),
            # What gives a build up has waited for an answer, and then says so.
            look_seconds=_answer_seconds(self.conf) + 40.0,
            events=self.tenant_events,
        )
        self._waiting_conductor = made
        return made

    def waiting_api(self) -> waiting_api.WaitingApi | None:
        """Return an API's part in requests that wait; None where none may."""
        if not self.lets_wait:
            return None
        synchronizer = self.make_synchronizer()
        records = self._request_records(synchronizer, "api")
        from_api = self.conf[queue_options.GROUP].from_api
        return waiting_api.WaitingApi(
            synchronizer, records.ledger, self.wait_settings(), records if from_api else None
        )

    def _request_records(
        self, synchronizer: contract.Synchronizer, role: str
    ) -> request_records.RequestRecords:
        lease_seconds = float(self.conf[queue_options.GROUP].lease_seconds)
        return request_records.RequestRecords(
            pending_ledger.PendingLedger(synchronizer, lease_seconds),
            self.payload_cipher(),
            lambda: f"{role}:{self.conf.host}:{uuid.uuid4()}",
        )

    def _payload_reader(self, ledger: pending_ledger.PendingLedger) -> pending_plans.ReadRequest:
        cipher = self.payload_cipher()
        return functools.partial(pending_plans.read_request, ledger, cipher)

    def scheduler_class(self) -> type[Any]:
        """Load the class that ``scheduler_driver`` names."""
        return _load(SCHEDULER_DRIVERS, self.conf.scheduler_driver)

    def host_manager_class(self) -> type[Any]:
        """Load the class that ``scheduler_host_manager`` names."""
        return _load(HOST_MANAGERS, self.conf.scheduler_host_manager)

    # -- parts --------------------------------------------------------------------

    def make_synchronizer(self) -> contract.Synchronizer:
        """Return a new driver instance, not opened."""
        decoded_sizes.set_for_process(
            decoded_sizes.DecodingBounds(self.options.max_record_mib * decoded_sizes.MIB)
        )
        return migration_fence.FencedSynchronizer(loader.load(self.options.synchronizer, self.conf))

    @property
    def _node_mode(self) -> cell_modes.NodeMode:
        return cell_modes.NodeMode(self.options.compute_nodes)

    @property
    def compute_nodes(self) -> mirror_guard.MirrorGuard | node_serving.NodeServing:
        """This process's part in who answers for compute nodes; nothing is in place yet."""
        if self._compute_nodes is None:
            if self._node_mode is cell_modes.NodeMode.MIRROR:
                self._compute_nodes = mirror_guard.MirrorGuard(self.make_synchronizer, self.scopes)
            else:
                self._compute_nodes = node_serving.NodeServing(
                    self.make_synchronizer, self.scopes, lambda: str(uuid.uuid4()), self._node_mode
                )
        return self._compute_nodes

    def retreat(self) -> None:
        """Put back what of Nova's own functions this plugin has replaced; idempotent."""
        if self._compute_nodes is not None:
            self._compute_nodes.close()

    def publisher(
        self, synchronizer: contract.Synchronizer, owner: str
    ) -> publisher_module.Publisher:
        """Return a publisher for the namespaces of one owner."""
        by_name = {namespace.name: namespace for namespace in self.declared}
        return publisher_module.Publisher(
            synchronizer,
            by_name,
            owner,
            on_rejected=self._refused,
        )

    def _refused(self, namespace: str, count: int) -> None:
        """Count records that could not be written.

        Looked up late: a reporter's metrics are made when its thread starts.
        """
        self._count_refused(namespace, count)

    def row_publisher(
        self, synchronizer: contract.Synchronizer
    ) -> row_publisher_module.RowPublisher:
        """Return what publishes rows of Nova's tables."""
        return row_publisher_module.RowPublisher(
            self.publisher(synchronizer, known_namespaces.NOVA), self.scopes
        )

    def _place_bound_seconds(self) -> float:
        """Return how long a write that decides places waits for its record; 0 where none does."""
        if self._node_mode is cell_modes.NodeMode.MIRROR:
            return 0.0
        return float(self.options.place_bound_seconds)

    def reporter(
        self,
        role: str,
        cell: Callable[[], str],
        guards: Callable[[], tuple[str, ...]] = tuple,
        *,
        heartbeats: bool = True,
    ) -> change_reporter.ChangeReporter:
        """Return a reporter that starts with its first mark.

        :param cell: the cell it writes, or ``*``; asked in its thread
        """
        synchronizer = self.make_synchronizer()
        name = f"{role}:{self.conf.host}:{uuid.uuid4()}"

        def identify() -> change_reporter.ReporterIdentity:
            return change_reporter.ReporterIdentity(
                reporter_id=name,
                role=role,
                host=str(self.conf.host),
                pid=os.getpid(),
                cell=cell(),
                guards=guards(),
                plugin_version=plugin_version(),
                nova_version=start_checks.nova_version(),
                claiming=self._claims_outside if role == "conductor" else None,
                writes_every_cell=self.scopes.has_api_database(),
            )

        options = self.options
        made = change_reporter.ChangeReporter(
            synchronizer,
            self.row_publisher(synchronizer),
            self.publisher(synchronizer, known_namespaces.NODB),
            identify,
            change_reporter.ReporterOptions(
                flush_interval_seconds=options.flush_interval_seconds,
                heartbeat_flush_interval_seconds=options.heartbeat_flush_interval_seconds,
                beat_interval_seconds=options.beat_interval_seconds,
                exit_flush_seconds=options.exit_flush_seconds,
                max_dirty_records=options.max_dirty_records,
                service_down_time_seconds=float(self.conf.service_down_time),
                place_bound_seconds=self._place_bound_seconds(),
                reporter_bound_seconds=options.reporter_bound_seconds,
            ),
            heartbeats=heartbeats,
        )
        made.more_facts = self._facts
        made.on_beat = self._look_at_modes
        if role == "conductor":
            made.standstills = standstill_watch.StandstillWatch()
            if options.heartbeat_journals and heartbeats:
                # One that sends no beats looks at nobody, and would never know.
                self._let_journal(made, synchronizer, cell)
        if heartbeats:
            made.make_company = self._exporting(made, role, cell)
        return made

    def _let_journal(
        self,
        made: change_reporter.ChangeReporter,
        synchronizer: contract.Synchronizer,
        cell: Callable[[], str],
    ) -> None:
        """Have a conductor's reporter journal heartbeats while its cell does."""
        writer = journal_writer.JournalWriter(
            cell,
            lambda of_cell: heartbeat_ring.HeartbeatRing(
                synchronizer, of_cell, lambda: str(uuid.uuid4()), self._ring_options
            ),
        )
        keeper = journal_keeper.JournalKeeper(
            writer,
            True,
            made.lose,
            trust_seconds=self._trust_seconds,
            alive_seconds=float(self.options.reporter_bound_seconds),
        )
        look, facts = made.on_beat, made.more_facts

        def on_beat(client: contract.Synchronizer, name: str) -> None:
            try:
                look(client, name)
            finally:
                # Without its word heartbeats wait, whatever is wrong with another mode.
                keeper.keep(client, name)

        made.journal = writer
        made.on_beat = on_beat
        made.more_facts = lambda: {**facts(), **keeper.facts()}

    @property
    def _ring_seconds(self) -> float:
        return heartbeat_journals.RING_TIMES * float(self.conf.service_down_time)

    @property
    def _ring_options(self) -> heartbeat_ring.RingOptions:
        return heartbeat_ring.RingOptions(keep_seconds=self._ring_seconds)

    @property
    def _trust_seconds(self) -> float:
        """How long what was read of others' modes holds.

        Less than neighbours wait, who count from the beat before.
        """
        options = self.options
        return float(options.reporter_bound_seconds - options.beat_interval_seconds)

    def _facts(self) -> dict[str, Any]:
        return {
            **service_heartbeats.facts(self._heartbeat_mode),
            **self.compute_nodes.facts(),
            **({lapsed_claims.CLAIMS_AS: self._claims_as} if self._claims_as else {}),
        }

    def _look_at_modes(self, synchronizer: contract.Synchronizer, _reporter: str) -> None:
        self.compute_nodes.look(synchronizer)

    @property
    def _heartbeat_mode(self) -> heartbeat_modes.HeartbeatMode:
        return heartbeat_modes.HeartbeatMode(self.options.service_heartbeats)

    def heartbeat_reader(self) -> heartbeat_reader.HeartbeatReader:
        """Return what tells services when they were heard of last; opened by its first read."""
        return heartbeat_reader.HeartbeatReader(
            self.make_synchronizer,
            self._heartbeat_mode,
            heartbeat_reader.ReaderOptions(down_seconds=float(self.conf.service_down_time)),
        )

    def heartbeat_storage(self) -> service_heartbeats.HeartbeatStorage:
        """Return a conductor's part in its cell's mode, and what stores heartbeats, not started."""
        options = self.options
        synchronizer = self.make_synchronizer()
        keeper = heartbeat_modes.ModeKeeper(
            self._heartbeat_mode,
            self.scopes.own_cell,
            functools.partial(self.publisher, owner=known_namespaces.NODB),
            trust_seconds=self._trust_seconds,
            alive_seconds=float(options.reporter_bound_seconds),
            renewed_seconds=float(self.conf.service_down_time),
        )
        writer = heartbeat_writer.HeartbeatWriter(
            synchronizer,
            self.publisher(synchronizer, known_namespaces.NOVA),
            row_publisher_module.merge_stored_heartbeats,
            heartbeat_writer.WriterOptions(
                window_seconds=min(1.0, float(options.heartbeat_flush_interval_seconds))
            ),
            on_failure=keeper.forbid,
        )
        return service_heartbeats.HeartbeatStorage(keeper, writer)

    def _place(self, port: int | None) -> exporter.ScrapeAddress | None:
        """Return where a service's metrics are served; None for nowhere."""
        if not port:
            return None
        directory = pathlib.Path(str(self.options.metrics_directory))
        return exporter.ScrapeAddress(str(self.options.metrics_host), int(port), directory)

    def _bounds_seconds(self) -> dict[str, float]:
        names = ("feed_bound", "reporter_bound", "mirror_bound", "claim_lease")
        return {name: float(self.options[f"{name}_seconds"]) for name in names}

    def _exporting(
        self, made: change_reporter.ChangeReporter, role: str, cell: Callable[[], str]
    ) -> Callable[[], change_reporter.ReporterExport] | None:
        """Return what makes the export of a reporter's process; None where there is none."""
        ports = {
            "conductor": self.options.conductor_metrics_port,
            "api": self.options.api_metrics_port,
        }
        place = self._place(ports.get(role))
        if place is None:
            return None

        def make() -> change_reporter.ReporterExport:
            export = change_reporter.ReporterExport(
                made,
                change_reporter.identity_of(role, str(self.conf.host), cell),
                place,
                functools.partial(
                    process_metrics.register,
                    plugin_version=plugin_version(),
                    nova_version=start_checks.nova_version(),
                    driver=str(self.options.synchronizer),
                    declared=self.declared,
                    bounds_seconds=self._bounds_seconds(),
                    statements=self.compute_nodes.statements,
                ),
            )
            self._have_refused_counted(export.metrics.records_refused)
            if role == "conductor":
                self._count_tenant_events(export.metrics.registry)
            if self._waiting_conductor is not None:
                counts = self._waiting_conductor.counts
                conductor_metrics.register(export.metrics.registry, lambda: dict(counts))
            return export

        return make

    def _have_refused_counted(self, count: Callable[[str, str, int], None]) -> None:
        """Have records that cannot be written counted, by driver and namespace."""
        self._count_refused = functools.partial(count, str(self.options.synchronizer))
        for each in self.declared:
            # Prometheus sees no rise where a series begins with its first event, and one of
            # a name that no record may have is refused once.
            self._count_refused(each.name, 0)

    # -- events to tenants --------------------------------------------------------

    @functools.cached_property
    def tenant_events(self) -> events_module.TenantEvents | None:
        """This process's way to tell projects of their requests that wait; None where it is off.

        Nothing is sent, and no thread runs, before the first event.

        :raises ConfigurationError: Zaqar cannot be reached as it is configured
        """
        options = self.conf[queue_options.GROUP]
        if not options.zaqar_queue:
            return None
        return events_module.TenantEvents(
            self._zaqar_queues(),
            events_module.TenantEventOptions(
                ttl_seconds=options.zaqar_message_ttl_seconds,
                max_backlog=options.zaqar_max_backlog,
            ),
        )

    def _zaqar_queues(self) -> zaqar_queues.ZaqarQueues:
        group = zaqar_options.GROUP
        options = self.conf[group]
        load = functools.partial(loading.load_auth_from_conf_options, self.conf, group)
        try:
            session = loading.load_session_from_conf_options(self.conf, group)
            adapter = functools.partial(
                loading.load_adapter_from_conf_options, self.conf, group, session=session
            )
            adapter()
            auth = load()
        except (keystone.ClientException, cfg.Error, TypeError, ValueError) as error:
            raise errors.ConfigurationError(
                f"[{group}] auth_type", options.auth_type, f"keystoneauth says: {error}"
            ) from error
        if auth is None and not (options.signing_key and options.endpoint_override):
            raise errors.ConfigurationError(
                f"[{group}] auth_type",
                "",
                "Zaqar needs a service user, such as password with its options; or signing_key "
                "and endpoint_override. To switch events off, leave [nodb_queue] zaqar_queue empty",
            )
        # Only identity plugins have a project.
        scoped = isinstance(auth, identity.BaseIdentityPlugin) and not options.signing_key
        return zaqar_queues.ZaqarQueues(
            str(self.conf[queue_options.GROUP].zaqar_queue),
            client_id=str(uuid.uuid4()),
            make_adapter=lambda plugin: adapter(auth=plugin),
            scope=(lambda project_id: load(project_id=project_id)) if scoped else None,
            auth=auth,
            signing_key=options.signing_key,
        )

    def _count_tenant_events(self, registry: prometheus_client.CollectorRegistry) -> None:
        """Have a process tell in its metrics what became of its events."""
        if self.tenant_events is not None:
            tenant_event_metrics.register(
                registry, self.tenant_events.figures, events_module.LOSSES
            )

    def sweeper(self, synchronizer: contract.Synchronizer) -> cell_sweeper.CellSweeper:
        """Return what walks a scope's tables."""
        return cell_sweeper.CellSweeper(
            synchronizer,
            self.row_publisher(synchronizer),
            self.publisher(synchronizer, known_namespaces.NODB),
            self.scopes,
            self.options.sweep_page_rows,
            self.options.sweep_pause_seconds,
        )

    @property
    def _claims_outside(self) -> bool:
        return bool(self.options.claims == "on" and self.options.candidates == "memory")

    @property
    def _verifies(self) -> bool:
        return bool(self.options.verify_allocations != "never")

    @property
    def _notes(self) -> bool:
        """Whether schedulers note what they allocate without a judged claim."""
        return self._verifies and bool(self.options.claims == "on")

    def outside_claims(self) -> outside_claims_module.StoppableClaimer | None:
        """Return what claims for a conductor, or verifies; None where nobody does either."""
        options = self.options
        verifier = verification.AllocationVerifier(report.report_client_singleton)
        if not self._claims_outside:
            return unjudged_claims.UnjudgedClaims(verifier) if self._verifies else None
        synchronizer = self.make_synchronizer()
        publisher = self.publisher(synchronizer, known_namespaces.PLACEMENT)

        def unjudged(batches: ledger_claimer.ClaimBatches) -> unjudged_claims.UnjudgedClaims:
            notes = unjudged_claims.ClaimNotes(
                synchronizer, batches, options.claim_deadline_seconds
            )
            return unjudged_claims.UnjudgedClaims(verifier, notes)

        self._claims_as = f"{lapsed_claims.CONDUCTOR}:{self.conf.host}:{uuid.uuid4()}"
        return outside_claims_module.OutsideClaims(
            synchronizer,
            self._claims_as,
            options.claim_lease_seconds,
            options.claim_deadline_seconds,
            self.conf.filter_scheduler.enabled_filters,
            tree_publisher.ProviderReread(synchronizer, publisher).read,
            unjudged=unjudged if self._verifies else None,
        )

    def checked_alternates(
        self, outside: outside_claims_module.StoppableClaimer | None
    ) -> outside_claims_module.StoppableClaimer | None:
        """Return a conductor's claims with a look at alternates first, where a mirror named them.

        :param outside: what claims for it, see :meth:`outside_claims`
        """
        if self.options.candidates != "memory":
            return outside
        return alternate_hosts.CheckedAlternates(outside)

    def unjudged(
        self, runtime: runtime_module.SchedulerRuntime, placement_client: Callable[[], Any]
    ) -> unjudged_claims.UnjudgedClaimsMaker | None:
        """Return what allocates for a scheduler where no claim can be judged; None for nothing.

        :param placement_client: names Nova's own client
        """
        options = self.options
        if not self._verifies:
            return None
        notes = None
        decisions = runtime.decisions
        turns = write_turns.WriteTurns() if decisions is None else decisions.write_turns
        tell_left: verification.TellLeft = verification.tell_nobody
        if self._notes:
            memory = group_places.MemberMemory()
            if decisions is not None:
                tell_left, memory = decisions.tell_left, decisions.members
            elif runtime.upkeep is not None:
                tell_left, memory = runtime.upkeep.left.add, runtime.upkeep.lost
            batches = ledger_claimer.ClaimBatches(
                runtime.synchronizer,
                runtime.replicator.status().identity,
                lambda: str(uuid.uuid4()),
                options.claim_lease_seconds,
                claimable=lambda host: True,
                count_lost=runtime.claim_metrics.lost,
                count_absorbed=runtime.claim_metrics.absorbed,
                cache=runtime.upkeep.cache if runtime.upkeep is not None else None,
                memory=memory,
            )
            notes = unjudged_claims.ClaimNotes(
                runtime.synchronizer,
                batches,
                options.claim_deadline_seconds,
                worker_claims.strict_policies(self.conf.filter_scheduler.enabled_filters),
                lambda: (
                    runtime.decisions is not None
                    or self._anybody_judges(runtime, runtime.store.snapshot())
                ),
                lambda consumer, node: group_members.is_on(
                    runtime.store.snapshot(), consumer, node
                ),
                memory,
            )
        return unjudged_claims.UnjudgedClaimsMaker(
            verification.AllocationVerifier(
                placement_client, meter=runtime.claim_metrics, turns=turns
            ),
            notes,
            tell_left,
        )

    def upkeep(
        self, runtime: runtime_module.SchedulerRuntime, placement_client: Callable[[], Any]
    ) -> claim_upkeep.NoteUpkeep | None:
        """Return what looks after notes where nothing decides from memory, not started.

        None where nobody notes.

        :param placement_client: names Nova's own client
        """
        if not self._notes:
            return None
        return claim_upkeep.NoteUpkeep(
            claim_upkeep.UpkeepSurroundings(**self._surroundings(runtime, placement_client)),
            claim_upkeep.UpkeepOptions(**self._upkeep_bounds),
            functools.partial(self._anybody_judges, runtime),
        )

    def _surroundings(
        self, runtime: runtime_module.SchedulerRuntime, placement_client: Callable[[], Any]
    ) -> dict[str, Any]:
        """Return the fields of :class:`claim_upkeep.UpkeepSurroundings`."""
        return {
            "host": str(self.conf.host),
            "synchronizer": runtime.synchronizer,
            "store": runtime.store,
            "replicator": runtime.replicator,
            "now_seconds": runtime.clock.now_seconds,
            "placement_client": placement_client,
        }

    @property
    def _upkeep_bounds(self) -> dict[str, Any]:
        """The fields of :class:`claim_upkeep.UpkeepOptions`."""
        return {
            "claim_lease_seconds": self.options.claim_lease_seconds,
            "claim_wait_seconds": self.options.claim_wait_seconds,
            "silent_scheduler_seconds": self._silent_scheduler_seconds,
            "delete_orphan_allocations": self.options.delete_orphan_allocations,
        }

    def _anybody_judges(
        self, runtime: runtime_module.SchedulerRuntime, snapshot: store_snapshot.Snapshot
    ) -> bool:
        """Say whether another scheduler may judge claims now.

        One that slept for longer uses no mirror of Placement before it was compared again.
        """
        silent_seconds = self._silent_scheduler_seconds + float(self.options.mirror_bound_seconds)
        return lapsed_claims.anybody_claims(snapshot, runtime.clock.now_seconds() - silent_seconds)

    @property
    def _silent_scheduler_seconds(self) -> float:
        """How old a living scheduler's heartbeat is at most."""
        return float(3 * self.options.beat_interval_seconds + 1)

    def sweep_duty(self) -> sweep_duty_module.SweepDuty:
        """Return a conductor's duty to sweep its cell, and the API's tables where it can."""
        synchronizer = self.make_synchronizer()
        options = self.options

        def scopes() -> list[str]:
            own = self.scopes.own_cell()
            if not self.scopes.has_api_database():
                return [own]
            # Often no conductor's own: whoever can reach it sweeps it.
            cell0 = objects.CellMapping.CELL0_UUID
            return sorted({own, cell0, scopes_module.API})

        return sweep_duty_module.SweepDuty(
            synchronizer,
            self.sweeper(synchronizer),
            self.publisher(synchronizer, known_namespaces.NODB),
            scopes,
            f"{self.conf.host}:{os.getpid()}:{uuid.uuid4()}",
            sweep_duty_module.SweepDutyOptions(
                interval_seconds=options.sweep_interval_seconds,
                least_pause_seconds=min(10.0, options.sweep_interval_seconds),
                reporter_bound_seconds=options.reporter_bound_seconds,
                check_seconds=options.beat_interval_seconds,
                margin_seconds=options.delta_sweep_margin_seconds,
                ring_seconds=self._ring_seconds,
            ),
            journals=journal_watch.JournalWatch(
                synchronizer, self._journal_follower, time.monotonic
            ),
        )

    def _journal_follower(self) -> journal_follower.JournalFollower:
        """Return a follower of heartbeat journals that has read nothing."""
        return journal_follower.JournalFollower(
            3 * float(self.options.heartbeat_flush_interval_seconds),
            heartbeat_journals.HORIZON_TIMES * float(self.conf.service_down_time),
        )

    def scheduler(
        self,
        cells: Callable[[], list[str]],
        make_server: Callable[[runtime_module.SchedulerRuntime], Any] | None = None,
    ) -> runtime_module.SchedulerRuntime:
        """Return a scheduler worker's runtime, not started."""
        options = self.options
        runtime = runtime_module.SchedulerRuntime(
            self.make_synchronizer,
            self.declared,
            cells,
            runtime_module.WorkerFacts(
                host=str(self.conf.host),
                plugin_version=plugin_version(),
                nova_version=start_checks.nova_version(),
            ),
            proof_module.ProofOptions(
                feed_bound_seconds=options.feed_bound_seconds,
                reporter_bound_seconds=options.reporter_bound_seconds,
                unreported_grace_seconds=3 * options.heartbeat_flush_interval_seconds,
                journal_horizon_seconds=heartbeat_journals.HORIZON_TIMES
                * float(self.conf.service_down_time),
            ),
            replicator_contract.ReplicatorOptions(
                canary_interval_seconds=options.beat_interval_seconds,
                silence_seconds=options.feed_bound_seconds,
            ),
            make_server=make_server,
            export=self._place(options.metrics_port),
            bounds_seconds=self._bounds_seconds(),
            driver=str(options.synchronizer),
            nodes=self.compute_nodes,
            checkpoint_options=self._checkpoint_options(),
        )
        self._have_refused_counted(runtime.metrics.records_refused)
        self._count_tenant_events(runtime.metrics.registry)
        return runtime

    def _checkpoint_options(self) -> checkpoint_contract.CheckpointOptions | None:
        if not self.options.checkpoint_directory:
            return None
        return checkpoint_contract.CheckpointOptions(
            directory=str(self.options.checkpoint_directory),
            interval_seconds=float(self.options.checkpoint_interval_seconds),
            max_bytes=self.options.checkpoint_max_mib * decoded_sizes.MIB,
        )

    def late_requests(self) -> late_requests.LateRequests:
        """Return what says of requests whether anybody waits for them."""
        return late_requests.LateRequests(_answer_seconds(self.conf))

    def decisions(
        self,
        runtime: runtime_module.SchedulerRuntime,
        host_manager: Any,
        placement_client: Callable[[], Any],
    ) -> decision_assembly.DecisionAssembly | None:
        """Return what decides from memory, not started; None where that is switched off.

        :param placement_client: names Nova's own client
        """
        options = self.options
        if options.candidates != "memory":
            return None
        return decision_assembly.DecisionAssembly(
            decision_assembly.WorkerSurroundings(
                **self._surroundings(runtime, placement_client),
                plugin=self,
                host_manager=host_manager,
                claim_meter=runtime.claim_metrics,
                journals=runtime.journals,
            ),
            decision_assembly.DecisionOptions(
                **self._upkeep_bounds,
                mirror=mirror_assembly.MirrorOptions(
                    bound_seconds=options.mirror_bound_seconds,
                    tree_bound_seconds=options.mirror_tree_bound_seconds,
                    sweep_interval_seconds=options.mirror_sweep_interval_seconds,
                    reread_seconds=options.mirror_reread_seconds,
                    readers=options.mirror_readers,
                ),
                deadline_seconds=options.claim_deadline_seconds,
                request_threads=int(_of_messaging(self.conf, "executor_thread_pool_size")),
                batch_window_seconds=options.allocation_batch_window_seconds,
                max_batch_servers=options.allocation_batch_servers,
                max_allocation_calls=options.allocation_calls,
                cache_bytes=options.signature_cache_mib * 1024 * 1024,
                claims=options.claims == "on",
                claim_spread=options.claim_spread,
                verify_allocations=options.verify_allocations,
            ),
        )


def _answer_seconds(conf: cfg.ConfigOpts) -> float:
    """Return how long services wait for an answer over RPC."""
    return float(_of_messaging(conf, "rpc_response_timeout"))


def _of_messaging(conf: cfg.ConfigOpts, name: str) -> Any:
    """Return an option of oslo.messaging."""
    # It registers it with its first client or server, which a process may not have yet.
    for group, options in messaging_opts.list_opts():
        if group is None:
            conf.register_opts([each for each in options if each.dest == name])
    return conf[name]


def _choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise errors.ConfigurationError(option, value, f"choose one of {', '.join(choices)}")


def _load(group: str, name: str) -> type[Any]:
    loaded: type[Any] = stevedore_driver.DriverManager(group, name).driver
    return loaded


_plugin: Plugin | None = None


def get() -> Plugin:
    """Return this process's plugin.

    :raises ConfigurationError: the plugin was not activated
    """
    if _plugin is None:
        raise errors.ConfigurationError(
            "[oslo_messaging_notifications] driver",
            "",
            "add nodb_scheduler to it: nova-scheduler was told to run the plugin's "
            "scheduler without loading the plugin",
        )
    return _plugin


def install(plugin: Plugin | None) -> None:
    """Make a plugin this process's own; None takes it away."""
    global _plugin
    if _plugin is not None and _plugin is not plugin:
        _plugin.retreat()
    _plugin = plugin
