# SPDX-License-Identifier: Apache-2.0
"""Judges whether services, cells and nova.conf agree with the plugin's records.

What can be proved: a conductor or a scheduler says every few seconds on the
back end that it lives, so one that Nova knows to be up and that says nothing
runs without the plugin. An API process speaks from its first write on: until
then nothing is known of it.

Of the line of nova.conf that makes services load the plugin the spelling is
looked at, before any service is restarted. Nova tells of a notification driver
that it cannot load by one line on standard error, and runs stock; of an option
that nobody reads it tells nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.framework import terminal
from nova_nodb_scheduler.cmd.overview import deployment, journaling, node_cells, node_modes

Code = upgradecheck.Code

_APIS = ("nova-osapi_compute", "nova-metadata")
_EVERY_CELL = "*"


@attrs.frozen
class NovaService:
    """A service as Nova's ``services`` tables know it.

    :param cell: uuid of the cell whose table holds it
    """

    binary: str
    host: str
    cell: str
    up: bool


@attrs.frozen
class Judgement:
    """A sentence, and how bad it is."""

    code: upgradecheck.Code
    text: str


def success(text: str) -> Judgement:
    """Return what is as it should be."""
    return Judgement(Code.SUCCESS, text)


def warning(text: str) -> Judgement:
    """Return what should be mended."""
    return Judgement(Code.WARNING, text)


def failure(text: str) -> Judgement:
    """Return what must be mended."""
    return Judgement(Code.FAILURE, text)


def result(judged: Iterable[Judgement]) -> upgradecheck.Result:
    """Put findings together: the worst of them decides."""
    findings = list(judged)
    worst = max((finding.code for finding in findings), default=Code.SUCCESS)
    return upgradecheck.Result(worst, " ".join(finding.text for finding in findings) or None)


def judge_services(
    services: Collection[NovaService], found: deployment.Deployment, *, expects_schedulers: bool
) -> list[Judgement]:
    """Say which services run the plugin, and which run stock Nova.

    :param expects_schedulers: whether the configuration names one of the
        plugin's schedulers
    """
    apis = _reporting_hosts(found, "api")
    conductors = _reporting_hosts(found, "conductor")
    scheduling = _living_hosts(found.schedulers)
    findings = []
    proved = 0
    unproved_apis = []
    for service in sorted(services, key=lambda each: (each.binary, each.host)):
        name = f"{service.binary} on {service.host}"
        if service.binary in _APIS:
            # An API sends no heartbeats: that its row is old says nothing.
            if service.host in apis:
                proved += 1
            else:
                unproved_apis.append(name)
        elif not service.up:
            continue
        elif service.binary == "nova-conductor":
            if service.host in conductors:
                proved += 1
            else:
                findings.append(
                    failure(
                        f"{name} (cell {service.cell}) runs without the plugin: what it writes "
                        "is found by sweeps only, and its cell is not served from memory. Give "
                        "it the plugin's lines of nova.conf and restart it."
                    )
                )
        elif service.binary == "nova-scheduler":
            if service.host in scheduling:
                proved += 1
            elif expects_schedulers:
                findings.append(
                    warning(
                        f"{name} runs Nova's own scheduler: it reads the databases, and takes "
                        "no claims. Restart it with the plugin's lines of nova.conf."
                    )
                )
    if not any(service.binary == "nova-conductor" and service.up for service in services):
        findings.append(warning("No nova-conductor is up in any cell."))
    if unproved_apis:
        findings.append(
            success(
                f"Nothing is known of {', '.join(unproved_apis)}: an API shows itself with its "
                "first write."
            )
        )
    return [success(f"{proved} services run the plugin."), *findings]


def _living_hosts(processes: Iterable[Mapping[str, Any]]) -> set[str]:
    return {str(each["host"]) for each in processes if each["alive"]}


def _reporting_hosts(found: deployment.Deployment, role: str) -> set[str]:
    """Return the hosts where a service of one kind reports: an API beside it is no conductor."""
    return _living_hosts(each for each in found.reporters if each["role"] == role)


def judge_reporters(found: deployment.Deployment) -> Iterator[Judgement]:
    """Say which reporters are silent or behind."""
    for each in found.reporters:
        name = f"The reporter of the {each['role']} on {each['host']}"
        if not each["alive"]:
            yield warning(
                f"{name} (process {each['pid']}) is silent for {each['age_seconds']:.0f} s."
            )
        elif each["behind_seconds"] > 0 and each["failed_flushes"]:
            yield warning(
                f"{name} is {each['behind_seconds']:.1f} s behind; it failed to publish "
                f"{each['failed_flushes']} times."
            )
    if not any(each["alive"] for each in found.reporters):
        yield failure("No reporter lives.")


def judge_feeds(found: deployment.Deployment, *, expects_schedulers: bool) -> Iterator[Judgement]:
    """Say which schedulers are silent, do not follow, do not answer, or cannot read records."""
    if expects_schedulers and not any(each["alive"] for each in found.schedulers):
        yield failure("No scheduler runs the plugin.")
    for each in found.schedulers:
        name = f"The scheduler on {each['host']} (process {each['pid']})"
        if not each["alive"]:
            # A host's other workers keep its service up for Nova.
            yield warning(
                f"{name} is silent for {each['age_seconds']:.0f} s: if it has not ended, it is "
                "frozen or cannot write to the back end. Look at its log, and restart it."
            )
            continue
        if str(each["state"]).startswith(deployment.STARTING):
            yield warning(f"{name} takes no request yet: {each['state']}.")
        elif each["state"] != deployment.FOLLOWING:
            yield failure(f"{name}: its feed is {each['state']}.")
        if each["answered"] is False:
            yield warning(f"{name} does not answer over RPC: {each['error']}.")
        if each["quarantined"]:
            yield failure(f"{name} cannot read {each['quarantined']} records.")


def judge_claims(found: deployment.Deployment) -> Iterator[Judgement]:
    """Say where some schedulers and conductors claim hosts and others do not."""
    texts = deployment.claims_that_differ(found.schedulers, found.reporters)
    yield from map(warning, texts)


def judge_heartbeats(
    services: Collection[NovaService], found: deployment.Deployment
) -> Iterator[Judgement]:
    """Say where heartbeats of compute services stand, and who does not know it."""
    modes = {str(each["cell"]): str(each["heartbeats"]) for each in found.cells}
    for text in deployment.heartbeats_that_differ(found.cells, found.reporters):
        yield warning(text)
    yield from map(warning, journaling.that_wait(found.cells))
    for cell, told in journaling.lines(found.cells).items():
        yield success(f"Cell {cell}: {told}.")
    beside = {cell: mode for cell, mode in sorted(modes.items()) if mode != "database"}
    if not beside:
        yield success("Heartbeats of compute services are written to their rows.")
        return
    for cell, mode in beside.items():
        yield success(f"Heartbeats of the compute services of cell {cell}: {mode}.")
    conductors = _reporting_hosts(found, "conductor")
    stock = sorted(
        f"{each.binary} on {each.host}"
        for each in services
        if each.binary == "nova-conductor" and each.up and each.host not in conductors
    )
    if stock and "store" in beside.values():
        yield failure(
            f"{', '.join(stock)} runs without the plugin, and reads compute services that live "
            "as dead: give it the plugin's lines of nova.conf and restart it."
        )


def judge_compute_nodes(found: Collection[node_cells.NodeCell]) -> Iterator[Judgement]:
    """Say who answers for the compute nodes of each cell, and what is wrong with that."""
    modes: dict[str, int] = {}
    for each in found:
        if each.state is not None:
            mode = each.state.mode.value
            modes[mode] = modes.get(mode, 0) + 1
    for mode, count in sorted(modes.items()):
        yield success(f"Mode {mode}: {terminal.counted(count, 'cell')}.")
    for problem in node_cells.problems(found):
        yield failure(problem.text) if problem.is_grave else warning(problem.text)
    if "retired" in modes:
        yield success(
            "Before 'nova-manage db sync' of another release of Nova run 'nova-nodb-manage "
            "compute-nodes prepare-upgrade', and 'retire' behind it: a migration may want the "
            "table."
        )


#: What becomes of what a conductor without the plugin does, by the mode of its cell.
_STRAY: Mapping[str, str] = {
    "store": "compute nodes that it writes are lost, and it reads a table that nobody heeds",
    "retired": "each of its calls that needs a compute node fails",
}


def judge_node_services(
    services: Collection[NovaService], found: deployment.Deployment, *, expects_schedulers: bool
) -> Iterator[Judgement]:
    """Say who lives beside cells whose compute nodes are records, and does not know it.

    An API without the plugin cannot be seen: it says nothing, with or without it, until it
    writes.

    :param expects_schedulers: see :func:`judge_services`
    """
    modes = node_modes.recorded(found.backend.node_cells)
    cells = [str(each["cell"]) for each in found.cells]
    for text in node_modes.that_differ(modes, cells, (*found.schedulers, *found.reporters)):
        yield failure(text)
    beside = {cell: mode for cell, mode in modes.items() if mode in _STRAY}
    if not beside:
        return
    conductors = _reporting_hosts(found, "conductor")
    scheduling = _living_hosts(found.schedulers)
    for each in sorted(services, key=lambda each: (each.binary, each.host)):
        if not each.up:
            continue
        stock = f"{each.binary} on {each.host} runs without the plugin"
        if each.binary == "nova-conductor" and each.host not in conductors:
            if each.cell in beside:
                mode = beside[each.cell]
                yield failure(
                    f"{stock} beside cell {each.cell} in mode {mode}: {_STRAY[mode]}. Stop it, "
                    "and start it with the plugin's lines of nova.conf."
                )
        elif each.binary == "nova-scheduler" and expects_schedulers and each.host not in scheduling:
            yield failure(
                f"{stock}, and finds no host, or those of a table that nobody heeds, in "
                f"{terminal.counted(len(beside), 'cell')} whose compute nodes are records. Stop "
                "it, and start it with the plugin's lines of nova.conf."
            )


def judge_cells(
    mapped: Collection[str],
    services: Collection[NovaService],
    found: deployment.Deployment,
    nodes_by_cell: Mapping[str, int],
) -> Iterator[Judgement]:
    """Say where cell mappings, reporters and records name different cells.

    :param mapped: uuids of the cell mappings, cell0 included
    :param nodes_by_cell: compute nodes on the back end by the cell they name
    """
    alive = [each for each in found.reporters if each["alive"]]
    for cell in sorted(mapped):
        if not any(cell in each["guards"] for each in alive):
            yield warning(f"No conductor reports for cell {cell}: schedulers read its database.")
        known = found.backend.cells.get(cell, {})
        if known.get("epoch") != found.backend.epoch:
            yield warning(
                f"Cell {cell} was never imported: schedulers read its database until a "
                "conductor has swept it, or run 'nova-nodb-manage import'."
            )
    for each in found.cells:
        if each["reasons"]:
            yield warning(
                f"Cell {each['cell']} is not served from memory by "
                f"{terminal.counted(len(each['reasons']), 'scheduler')}, which read its database: "
                f"{', '.join(sorted(set(each['reasons'].values())))}."
            )
    known_scopes = {*mapped, "api", _EVERY_CELL}
    for each in alive:
        foreign = sorted({str(each["cell"]), *each["guards"]} - known_scopes)
        if foreign:
            yield failure(
                f"The {each['role']} on {each['host']} reports for {', '.join(foreign)}, "
                "which no cell mapping names: correct [nodb_scheduler] cell_uuid there."
            )
    yield from _disagreeing(services, alive)
    for cell in sorted({*found.backend.cells, *nodes_by_cell} - known_scopes):
        yield warning(
            f"The back end holds {nodes_by_cell.get(cell, 0)} compute nodes of cell {cell}, "
            "which no cell mapping names."
        )


def _disagreeing(
    services: Collection[NovaService], reporters: Collection[Mapping[str, Any]]
) -> Iterator[Judgement]:
    """Find conductors that report for another cell than the one they are registered in."""
    registered: dict[str, set[str]] = {}
    for service in services:
        if service.binary == "nova-conductor":
            registered.setdefault(service.host, set()).add(service.cell)
    for each in reporters:
        cells = registered.get(str(each["host"]))
        if each["role"] != "conductor" or not cells or each["cell"] in cells:
            continue
        yield failure(
            f"The conductor on {each['host']} reports for cell {each['cell']}, and is "
            f"registered in cell {', '.join(sorted(cells))}: correct [nodb_scheduler] "
            "cell_uuid or [database] connection there."
        )


def judge_mirror(
    found: deployment.Deployment, bound_seconds: float, *, wanted: bool
) -> Iterator[Judgement]:
    """Say whether candidates can come from memory, and what that does not cover.

    :param bound_seconds: age beyond which the mirror is not used
    :param wanted: whether the configuration takes candidates from memory
    """
    if not wanted:
        yield success(
            "Candidates are asked of Placement, as [DEFAULT] scheduler_driver or "
            "[nodb_scheduler] candidates says."
        )
        return
    mirror = found.mirror
    if not mirror or mirror["age_seconds"] > bound_seconds:
        yield warning(
            "No scheduler keeps a current mirror of Placement: candidates are asked of "
            "Placement itself. Look at the log of nova-scheduler and at [placement] in its "
            "nova.conf."
        )
        return
    yield success(f"{mirror['providers']} providers are mirrored.")
    if mirror["broken"]:
        yield warning(
            f"{sum(mirror['broken'].values())} provider trees cannot be mirrored "
            f"({', '.join(sorted(mirror['broken']))}): their hosts get servers only where "
            "nobody else has room. 'nova-nodb-manage host list --namespace providers' shows "
            "them."
        )
    yield success(
        "Placement's option [placement] allocation_conflict_retry_count cannot be seen from "
        "here: unless it is 1, allocations of other services (neutron, cyborg, blazar, "
        "operators) that race with Nova's may over-commit a provider, as in stock Nova."
    )


def judge_guard(guarded: bool, compares: bool) -> Iterator[Judgement]:
    """Say whether the Placement that answered is guarded, which is for its operator to want.

    :param compares: it compares chosen hosts as it writes, as releases of the guard since do
    """
    if guarded:
        how = (
            "Schedulers have it compare the hosts they chose as it writes."
            if compares
            else "Its release of the plugin does not compare the hosts that schedulers chose as "
            "it writes: they ask it before."
        )
        yield success(
            "The Placement that answered locks the providers it writes allocations of: writers "
            f"that race do not over-commit. {how} See that all of its processes are started so."
        )
    else:
        yield success(
            "Placement is not guarded: it runs its own application, under which writers that "
            "race may over-commit a provider. "
            "'nova_nodb_scheduler.placement_adapter.wsgi:application' guards it."
        )


def judge_versions(found: deployment.Deployment) -> Iterator[Judgement]:
    """Say whether all processes run the same release of the plugin."""
    versions = sorted(
        {
            str(each["plugin_version"])
            for each in (*found.reporters, *found.schedulers)
            if each["alive"] and each["plugin_version"] is not None
        }
    )
    if len(versions) > 1:
        yield warning(
            f"Several releases of the plugin run: {', '.join(versions)}. Restart the "
            "services with the older one; 'db sync --contract' must wait for that."
        )


GROUP = "oslo_messaging_notifications"
OPTION = "driver"
NAME = "nodb_scheduler"
_RIGHT = f"[{GROUP}] {OPTION} = {NAME}"
_REMEDY = (
    f"Write '{OPTION} = {NAME}' in [{GROUP}] of nova.conf on every host of nova-scheduler, "
    "nova-conductor and nova-api, on a line of its own beside other drivers, and restart them."
)
#: Where the name stands for something else.
_OTHER_USES = {("DEFAULT", "scheduler_driver"), ("nodb_scheduler", "rpc_topic")}
#: How like the right name another one is taken for a slip.
_LIKE = 0.75

#: What the configuration files say: values by group and option.
Lines = Mapping[str, Mapping[str, Sequence[str]]]


def judge_activation_line(drivers: Collection[str], written: Lines) -> list[Judgement]:
    """Say whether services that read this configuration load the plugin.

    :param drivers: values of the option, as oslo.config reads them
    """
    if NAME in drivers:
        return [success(f"{_RIGHT} is there.")]
    slips = [f"[{GROUP}] {OPTION} = {each}" for each in drivers if _is_meant(each)]
    slips += [
        f"[{group}] {option} = {value}"
        for group, options in sorted(written.items())
        for option, values in sorted(options.items())
        for value in values
        if (group, option) != (GROUP, OPTION)
        and (group, option) not in _OTHER_USES
        and (NAME in value or (_is_like(group, GROUP) and _is_meant(value)))
    ]
    if slips:
        return [
            failure(
                f"{'; '.join(slips)}: nobody reads that, and services run stock Nova. {_REMEDY}"
            )
        ]
    return [
        warning(
            f"{_RIGHT} is missing: only services that are started by nova-nodb-scheduler, "
            f"nova-nodb-conductor or nova_nodb_scheduler.cmd.wsgi run the plugin. {_REMEDY}"
        )
    ]


def _is_meant(value: str) -> bool:
    """Tell whether a driver's name is ours, but for its spelling."""
    parts = value.lower().replace("-", "_").replace(",", " ").split()
    return any("nodb" in part or _is_like(part.strip("'\""), NAME) for part in parts)


def _is_like(text: str, right: str) -> bool:
    return difflib.SequenceMatcher(None, text, right).ratio() >= _LIKE


#: Servers that one finding names.
_MOST_NAMED = 20


def judge_unkept_servers(servers: Sequence[str], old_seconds: float) -> list[Judgement]:
    """Say which servers are in BUILD and nobody keeps their request.

    :param servers: the oldest first
    :param old_seconds: for how long they have been at least
    """
    if not servers:
        return [success("Somebody keeps the request of every server that waits.")]
    named = ", ".join(servers[:_MOST_NAMED])
    more = len(servers) - _MOST_NAMED
    return [
        warning(
            f"{len(servers)} servers have been in BUILD for {old_seconds / 60:.0f} minutes, and "
            "no record of their request stands on the back end: it was lost, or their conductor "
            "ended before it had written one. But for those whose message waits for a conductor, "
            "nobody builds them: delete them ('openstack server delete') and create them again. "
            f"They are {named}{f' and {more} more' if more > 0 else ''}."
        )
    ]
