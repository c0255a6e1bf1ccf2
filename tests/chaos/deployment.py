# SPDX-License-Identifier: Apache-2.0
"""The stack as a series of rounds wants it: little room, a back end, connections to be cut."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import attrs

from tests.chaos import backends, links, own_path, plan, usage_history
from tools.stack import cloud as stack_cloud
from tools.stack import configuration, database
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

DEADLINE_SHARE = 2 / 3
"""Of a claim's lease is the time that a request tries to allocate for."""

_LOG_LEVELS = {
    "amqp": "WARN",
    "iso8601": "WARN",
    "keystoneauth": "WARN",
    "keystonemiddleware": "WARN",
    "oslo.messaging": "INFO",
    "oslo_messaging": "INFO",
    "sqlalchemy": "WARN",
    "stevedore": "WARN",
    "urllib3.connectionpool": "WARN",
    "nova.conductor.manager": "DEBUG",
    "nova.scheduler.manager": "DEBUG",
    "nova_nodb_scheduler.nova_adapter.decision_log": "DEBUG",
}
"""Of schedulers and conductors, in stock, too: which servers each request has, which way it took,
and where each server was sent, also of those who were killed later."""

Options = dict[str, dict[str, str]]


@attrs.frozen
class Shape:
    """What does not change between the rounds of a series.

    :param backend: name of the synchronizer's, also where the plugin is off: plans stay the same
    :param kinds: of faults
    :param vcpus: of each host; every server has one
    :param lease_seconds: of claims, shorter than by default: who is stopped sleeps for longer
    :param rpc_seconds: after which a conductor asks another scheduler; None: Nova's own minute
    :param own_path: why no request is decided from memory, see :mod:`.own_path`; None: they are
    :param retired: Nova's tables of compute nodes are away, and heartbeats are stored
    :param wait_seconds: how long a request waits for room (``nodb_queue``); 0: none does
    :param from_api: the API itself puts requests into the queue
    """

    backend: str = backends.SQLALCHEMY
    with_plugin: bool = True
    kinds: tuple[str, ...] = ("scheduler-kill",)
    computes: int = 6
    schedulers: int = 2
    vcpus: int = 4
    lease_seconds: float = 12.0
    rpc_seconds: int | None = None
    own_path: str | None = None
    retired: bool = False
    wait_seconds: int = 0
    from_api: bool = False

    @property
    def control_plane(self) -> str:
        """Return what a round is told to be of."""
        if not self.with_plugin:
            return "stock"
        ways = {
            "retired": self.retired,
            "waiting": self.wait_seconds,
            "from the API": self.from_api,
        }
        return ", ".join([self.backend, *(name for name, is_so in ways.items() if is_so)])


@attrs.frozen
class Deployment:
    """A running stack, and what of it can be hurt besides its processes.

    :param backend: None where the plugin is off
    """

    shape: Shape
    stack: stack_module.Stack
    backend: backends.BackEnd | None
    links: links.Links


@contextlib.contextmanager
def running(
    shape: Shape, settings: stack_settings.Settings, progress: stack_module.Progress
) -> Iterator[Deployment]:
    """Bring a fresh stack up, and end it afterwards; its logs stay, and so do those before.

    :param settings: directories, ports and numbers of processes
    """
    former = stack_module.Stack(settings, progress)
    former.down()
    if aside := former.put_logs_aside():
        progress(f"the logs of the run before are in {aside}")
    former.down(wipe=True)
    with contextlib.ExitStack() as held:
        backend = None
        if shape.with_plugin:
            backend = held.enter_context(backends.running(shape.backend, settings))
            held.enter_context(own_path.prepared(shape.own_path, backend))
        cuts = held.enter_context(links.Links(settings, _cut_peers(shape, backend), backend))
        settings = attrs.evolve(settings, overrides=_overrides(shape, settings, backend, cuts))
        stack = stack_module.Stack(settings, progress)
        held.callback(stack.down)
        stack.up()
        if shape.retired:
            stack.retire_compute_nodes()
        if shape.wait_seconds:
            _let_wait(stack, shape.wait_seconds)
        stack.wait_heartbeats("nova-scheduler")
        usage_history.begin(lambda statement: database.query(settings, statement))
        yield Deployment(shape, stack, backend, cuts)


def _cut_peers(shape: Shape, backend: backends.BackEnd | None) -> list[str]:
    peers = [peer for peer in plan.PEERS if f"cut-{peer}" in shape.kinds]
    if backend is None or backend.port is None:
        return [peer for peer in peers if peer != plan.BACKEND]
    return peers


def _overrides(
    shape: Shape,
    settings: stack_settings.Settings,
    backend: backends.BackEnd | None,
    cuts: links.Links,
) -> Mapping[str, Options]:
    found: dict[str, Options] = {}
    names = [*settings.control_plane_names, "nova-manage"]
    for name in [*names, *settings.compute_names]:
        found[name] = {}
        if shape.rpc_seconds is not None:
            configuration.merge(
                found[name], {"DEFAULT": {"rpc_response_timeout": str(shape.rpc_seconds)}}
            )
    levels = ",".join(f"{name}={level}" for name, level in _LOG_LEVELS.items())
    for name in settings.control_plane_names:
        configuration.merge(found[name], {"DEFAULT": {"default_log_levels": levels}})
    if backend is not None:
        claims = {
            "claim_lease_seconds": str(shape.lease_seconds),
            "claim_deadline_seconds": str(shape.lease_seconds * DEADLINE_SHARE),
        }
        for name in names:
            configuration.merge(found[name], backend.options(name))
            configuration.merge(found[name], {"nodb_scheduler": claims})
            configuration.merge(found[name], own_path.options(shape.own_path))
            if shape.wait_seconds:
                configuration.merge(found[name], _queue_options(shape))
    for name, options in cuts.options().items():
        configuration.merge(found[name], options)
    return found


def _queue_options(shape: Shape) -> Options:
    options = {section: dict(values) for section, values in configuration.QUEUE.items()}
    options["nodb_queue"]["from_api"] = str(shape.from_api)
    return options


def _let_wait(stack: stack_module.Stack, seconds: int) -> None:
    """Give each flavor the word that lets its servers wait."""
    for _name, identity, *_size in stack_cloud.FLAVORS:
        words = {"extra_specs": {"nodb:wait": str(seconds)}}
        stack.cloud.compute.post(f"/flavors/{identity}/os-extra_specs", json=words)


def targets(shape: Shape, settings: stack_settings.Settings) -> Mapping[str, Sequence[str]]:
    """Return whom faults may hit, as if the plugin were on."""
    return plan.targets(settings, backends.target(shape.backend))
