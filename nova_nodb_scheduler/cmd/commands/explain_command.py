# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage explain: why a server goes, or went, where it does."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.commands import queue_commands
from nova_nodb_scheduler.cmd.framework import (
    bounded,
    bus_calls,
    command,
    number_arguments,
    reaching,
    terminal,
)
from nova_nodb_scheduler.cmd.overview import process_reports
from nova_nodb_scheduler.wire import objects

#: Weighers with a column of their own, without --wide: those that tell hosts apart most.
_SHOWN_WEIGHERS = 4


def show_explanation(
    printer: command.Command, server: str | None, past: Mapping[str, Any] | None, now: Any | None
) -> None:
    """Print the verdict, what was decided about a server, and what would be decided now."""
    printer.print_line(_verdict(server, now))
    if past is not None:
        _show_past(printer, str(server), past)
    if now is not None:
        _show_now(printer, now)


def _verdict(server: str | None, now: Any | None) -> str:
    """Say what would happen to the request now."""
    if now is None:
        return (
            f"Nova's API database has no request of server {server} (it was deleted, or never "
            "was): what would be decided now cannot be told."
        )
    if now.reason:
        return (
            f"Placement would be asked, as in stock Nova: {now.reason}."
            if now.candidates == "placement"
            else f"No valid host. {now.reason}"
        )
    if len(now.placed) < now.servers:
        return f"No valid host: {len(now.placed)} of {now.servers} servers find one."
    hosts = list(dict.fromkeys(each.host for each in now.placed))
    shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more hosts" if len(hosts) > 3 else "")
    what = "It would go" if now.servers == 1 else f"All {now.servers} servers would go"
    return f"{what} to {shown}, of {now.passed} hosts that pass."


def _show_past(printer: command.Command, server: str, past: Mapping[str, Any]) -> None:
    if past["decisions"]:
        printer.print_table(
            f"Decisions about server {server}",
            (
                terminal.TableColumn("when (UTC)", whole=True),
                *("outcome", "host", "s", "refused", "candidates"),
                *terminal.wide("scheduler", "score"),
            ),
            (_past_row(each) for each in past["decisions"]),
        )
        last = past["decisions"][-1]
        if last["counts"]:
            _show_steps(printer, "Steps of the last one", last["counts"])
    else:
        printer.print_line(f"\nNo scheduler remembers a decision about server {server}.")
    for each in past["workers"]:
        since = f" since {_when(each['since'])}" if each["since"] is not None else ""
        printer.print_line(
            f"{each['host']} (process {each['pid']}) remembers "
            f"{each['remembered']} requests{since}."
        )
    for host, why in past["silent"].items():
        printer.print_line(f"No answer from {host}: {why}")


def _past_row(decision: Mapping[str, Any]) -> tuple[Any, ...]:
    placed = decision["placed"][0] if decision["placed"] else None
    return (
        _when(decision["at"]),
        decision["outcome"].replace("_", " "),
        placed["host"] if placed else None,
        f"{decision['seconds']:.3f}",
        "; ".join(f"{each['host']}: {each['reason']}" for each in decision["refused"]),
        decision["candidates"],
        f"{decision['host']} ({decision['pid']})",
        _number(placed["score"]) if placed else None,
    )


def _show_now(printer: command.Command, now: Any) -> None:
    printer.print_line(
        f"\nWhat scheduler {now.scheduler} (process {now.pid}) would decide now; nothing was "
        f"allocated ({now.seconds:.3f} s)."
    )
    if now.reason:
        if not now.counts:
            return
        printer.print_line(
            "Which hosts Placement would offer is not known here. This is what filters and "
            "weighers say of all hosts, as if it offered every one:"
        )
    counts = [{"name": e.name, "before": e.before, "after": e.after} for e in now.counts]
    _show_steps(printer, "Steps without Placement" if now.reason else "Steps", counts)
    if now.hosts:
        _show_hosts(printer, now)
    if not now.reason and now.servers > 1 and now.placed:
        printer.print_table(
            f"{now.servers} servers, one after the other",
            ("#", "host", "score"),
            (
                (number, each.host, _number(each.score))
                for number, each in enumerate(now.placed, start=1)
            ),
        )


def _show_steps(printer: command.Command, title: str, counts: Sequence[Mapping[str, Any]]) -> None:
    printer.print_table(
        title,
        ("step", "hosts before", "refused", "hosts after"),
        (
            (each["name"], each["before"], each["before"] - each["after"], each["after"])
            for each in counts
        ),
    )


def _show_hosts(printer: command.Command, now: Any) -> None:
    names = [share.weigher for share in now.hosts[0].shares]
    of_host = [{share.weigher: share for share in host.shares} for host in now.hosts]
    # What is the same everywhere decides nothing.
    telling = [name for name in names if len({shares[name].share for shares in of_host}) > 1] or [
        name for name in names if any(shares[name].share for shares in of_host)
    ]
    telling.sort(key=lambda name: -_spread([shares[name].share for shares in of_host]))
    shown = [name.removesuffix("Weigher") for name in telling]
    printer.print_table(
        f"Best {len(now.hosts)} of {now.passed} hosts, and each weigher's share",
        (
            *("host", "score", *shown[:_SHOWN_WEIGHERS]),
            *terminal.wide(*shown[_SHOWN_WEIGHERS:], "node"),
        ),
        (
            (
                host.host,
                _number(host.score),
                *(_number(shares[name].share) for name in telling),
                host.node,
            )
            for host, shares in zip(now.hosts, of_host, strict=True)
        ),
    )
    left_out = [name for name in names if name not in telling]
    if left_out and now.passed > 1:
        printer.print_line(f"The same for all of them: {', '.join(left_out)}.")
    if now.hosts[0].shares:
        printer.print_table(
            f"How {now.hosts[0].host} was weighed",
            ("weigher", "raw", "normalised", "multiplier", "share"),
            (
                (
                    share.weigher,
                    *map(_number, (share.raw, share.normalised, share.multiplier, share.share)),
                )
                for share in now.hosts[0].shares
            ),
        )


def _spread(values: Sequence[float | None]) -> float:
    """Return how far a weigher's shares of the shown hosts are apart."""
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else 0.0


def _when(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    # Nobody wants to read of a minus zero.
    return "-" if value is None else f"{value + 0.0:.6g}"


class Explain(bus_calls.AskingCommand):
    """Tell why a server went where it is, and what would be decided now.

    A server's past decisions are asked of every scheduler worker that runs:
    what was chosen, which hosts refused the claim and why, which step left
    nobody. Each worker remembers its last 1,000 requests, until it ends. Then
    one scheduler plans the request again and tells how many hosts each step
    left and what each weigher gave to the best ones.

    Of a server whose request waits for room it is told besides what would have to be freed for it.

    Nothing is allocated or reserved, and Placement is not asked. It costs one
    scheduler about as much as a request does without its allocation; Nova's
    request filters may ask neutron as they would.

    Exit status: 0 if all servers would find a host, else 1.

    Examples:

      explain --server 3f2a7c5e-6d1b-4c0e-9a57-2f8e0b7d4c11
      explain --flavor m1.large --count 20
      explain --flavor m1.large --image-property hw_architecture=aarch64 --host compute7
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what to explain."""
        parser = super().get_parser(prog_name)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--server",
            metavar="UUID",
            help="a server, also one that found no host, by the request it was made with (read "
            "from Nova's API database). Its own place counts as taken: the answer is where "
            "another one like it would go",
        )
        what.add_argument("--flavor", metavar="F", help="a new server of this flavor, name or id")
        new = parser.add_argument_group("of a new server (--flavor)")
        new.add_argument(
            "--image",
            metavar="UUID",
            help="an image, read from glance with OS_CLOUD or the OS_* variables of the openstack "
            "command (default: an image without properties)",
        )
        new.add_argument(
            "--image-property",
            action="append",
            default=[],
            metavar="K=V",
            help="a property of the image; needs no glance. May be given several times",
        )
        new.add_argument(
            "--hint",
            action="append",
            default=[],
            metavar="K=V",
            help="a scheduler hint, such as group=UUID. May be given several times",
        )
        new.add_argument(
            "--availability-zone", metavar="Z", help="availability zone that is asked for"
        )
        new.add_argument(
            "--project", metavar="P", help="uuid of the project that the server is for"
        )
        new.add_argument(
            "--count",
            type=number_arguments.within(int, 1, 1000),
            default=1,
            metavar="N",
            help="servers in the request (default: %(default)s)",
        )
        parser.add_argument(
            "--host",
            metavar="H",
            help="look at this host alone, as if the request named it: the steps show which one "
            "refuses it",
        )
        parser.add_argument(
            "--limit",
            type=number_arguments.within(int, 1, 1000),
            default=10,
            metavar="N",
            help="most hosts to list (default: %(default)s)",
        )
        parser.add_argument(
            "--scheduler",
            metavar="HOST",
            help="have this scheduler host plan it (default: whichever answers first)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Ask, and print."""
        hints, properties = (
            pairs("--hint", args.hint),
            pairs("--image-property", args.image_property),
        )
        if args.server is not None:
            _refuse_with_server(args)
        plugin = self.plugin()
        deadline = self.deadline(args)
        reaching.api_database(plugin)
        rpc, expected = self.client(plugin, args, deadline)
        spec = bounded.ask(bounded.LOOK_SECONDS, lambda: self._spec(args, hints, properties))
        past = None
        if args.server is not None:
            past = gather(
                process_reports.read_backend_within(plugin.make_synchronizer, deadline),
                lambda host: rpc.get_decisions(self.context(), args.server, server=host),
                expected,
                float(plugin.options.reporter_bound_seconds),
            )
        waiting = None
        if args.server is not None:
            with self.answered(expected, args.scheduler):
                waiting = _waiting(rpc, self.context(), args.server, args.scheduler)
        now = None
        if spec is not None:
            with self.answered(expected, args.scheduler):
                now = rpc.explain(
                    self.context(),
                    spec.obj_to_primitive(),
                    servers=args.count,
                    limit=args.limit,
                    server=args.scheduler,
                )
        if args.json:
            told = {"past": past, "now": objects.plain(now), "waiting": objects.plain(waiting)}
            self.print_json(told)
        else:
            show_explanation(self, args.server, past, now)
            if waiting is not None:
                self.print_line(f"\nIts request waits for room. {queue_commands.verdict(waiting)}")
                queue_commands.show_details(self, waiting)
        return 0 if now is not None and len(now.placed) == now.servers else 1

    def _spec(
        self,
        args: argparse.Namespace,
        hints: Mapping[str, Sequence[str]],
        properties: Mapping[str, Sequence[str]],
    ) -> Any:
        from nova_nodb_scheduler.nova_adapter.service import made_requests

        if args.server is not None:
            return made_requests.of_server(self.context(), args.server, args.host)
        wanted = made_requests.WantedServer(
            flavor=args.flavor,
            image=args.image,
            properties={name: values[-1] for name, values in properties.items()},
            hints=hints,
            availability_zone=args.availability_zone,
            project=args.project,
        )
        return made_requests.of_new_server(self.context(), wanted, args.host)


def _waiting(rpc: Any, context: Any, server: str, scheduler: str | None) -> Any | None:
    """Return what is told of the request of a server that waits; None of one that does not."""
    try:
        return rpc.get_pending(context, server, server=scheduler)
    except (errors.PendingNotFound, errors.MethodNotServed):
        # A scheduler of an older release knows of none.
        return None


def gather(
    backend: process_reports.Backend,
    ask: Any,
    expected: tuple[type[Exception], ...],
    bound_seconds: float,
) -> dict[str, Any]:
    """Ask every worker that lives for its past decisions about a server.

    :returns: ``decisions``, the oldest first, each with the worker that made
        it; ``workers`` that answered, with what they remember; ``silent`` hosts,
        with the reason
    """
    alive: Any = {}
    for beat in backend.schedulers.values():
        if backend.age_seconds(beat) <= bound_seconds:
            alive.setdefault(str(beat.get("host")), set()).add(int(beat.get("pid", 0)))
    if backend.error is not None:
        # Nobody knows who lives: whoever is on the bus is asked.
        alive = {None: [0]}
    answers = process_reports.ask_schedulers(alive, ask, expected)
    workers, decisions = [], []
    for each in answers.by_worker.values():
        found: dict[str, Any] = objects.plain(each)
        worker = {"host": found["host"], "pid": found["pid"]}
        decisions += [{**worker, **decision} for decision in found.pop("decisions")]
        workers.append(found)
    silent = {str(host): why for host, why in answers.silent.items()}
    if backend.error is not None:
        silent["other schedulers"] = f"the back end does not tell of them: {backend.error}"
    return {
        "decisions": sorted(decisions, key=lambda each: float(each["at"])),
        "workers": sorted(workers, key=lambda each: (each["host"], each["pid"])),
        "silent": silent,
    }


def pairs(option: str, given: Sequence[str]) -> dict[str, list[str]]:
    """Read ``K=V`` arguments; a name may come several times.

    :raises ConfigurationError: one has no ``=``
    """
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise errors.ConfigurationError(option, each, "give a name and a value as K=V")
        found.setdefault(name, []).append(value)
    return found


def _refuse_with_server(args: argparse.Namespace) -> None:
    for option in ("image", "image_property", "hint", "availability_zone", "project"):
        if getattr(args, option):
            raise errors.ConfigurationError(
                f"--{option.replace('_', '-')}",
                getattr(args, option),
                "it is for a new server (--flavor); a --server has its own request",
            )
    if args.count != 1:
        raise errors.ConfigurationError("--count", args.count, "a --server is one")
