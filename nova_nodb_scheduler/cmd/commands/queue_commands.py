# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage queue ...: requests that wait for room, and the keys they are kept under."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cryptography import fernet

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bus_calls, command, number_arguments, terminal
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.rpc import queue_endpoint
from nova_nodb_scheduler.wire import objects, pending_objects

#: Requests that a drain is told of by name where they did not end.
_NAMED = 10

_OUTCOMES = {
    "done": "done",
    "busy": "is being placed at the moment: try again, or delete its servers",
    "gone": "does not wait any more",
}


class _QueueCommand(bus_calls.AskingCommand):
    """A command that asks one scheduler; the exit status is 3 when none answers."""

    def execute(self, args: argparse.Namespace) -> int:
        """Connect, and let the subclass ask and print."""
        rpc, unanswered = self.client(self.plugin(), args)
        with self.answered(unanswered, None):
            return self.ask(rpc, args)

    def ask(self, rpc: Any, args: argparse.Namespace) -> int:
        """Ask, and print."""
        raise NotImplementedError


def _add_conditions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", metavar="P", help="only of this project, by its id")
    parser.add_argument("--class", dest="priority_class", metavar="C", help="only of this class")
    parser.add_argument("--flavor", metavar="F", help="only of this flavor, by its name")


def _conditions(args: argparse.Namespace) -> dict[str, str]:
    given = {name: getattr(args, name) for name in ("project", "priority_class", "flavor")}
    return {name: value for name, value in given.items() if value is not None}


class QueueList(_QueueCommand):
    """List requests that wait for room, those first that were asked for first.

    Which of them goes first when room is freed is told by class, shares and age: queue
    show tells how many go before one.

    Example: queue list --project 0123456789abcdef0123456789abcdef --class high
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add which of them, and how many."""
        parser = super().get_parser(prog_name)
        _add_conditions(parser)
        parser.add_argument(
            "--state",
            choices=pending_objects.STATES,
            help="only in this state (default: all but those that are placed: their servers were "
            "sent to hosts, and wait for no room)",
        )
        parser.add_argument(
            "--limit",
            type=number_arguments.within(int, 1, 1_000_000),
            default=100,
            metavar="N",
            help="most requests to list (default: %(default)s)",
        )
        return parser

    def ask(self, rpc: Any, args: argparse.Namespace) -> int:
        """Read pages, and print them as one."""
        query = _conditions(args) | ({"state": args.state} if args.state else {})
        pages = list(_pages(rpc, self.context(), query, args.limit))
        last = pages[-1]
        requests = [each for page in pages for each in page.requests][: args.limit]
        if args.json:
            self.print_json(
                {
                    "requests": [objects.plain(each) for each in requests],
                    **{name: getattr(last, name) for name in ("total", "servers", "unreadable")},
                    "now": last.now,
                    "proof_age_seconds": last.proof_age_seconds,
                }
            )
            return 0
        self.print_line(_how_many(last, len(requests)))
        show_requests(self, requests, last.now)
        return 0


def _pages(rpc: Any, context: Any, query: Mapping[str, str], limit: int) -> Iterator[Any]:
    """Yield pages until there are requests enough, or no more."""
    found, marker = 0, None
    while True:
        page = rpc.list_pending(context, **query, limit=limit - found, marker=marker)
        yield page
        found, marker = found + len(page.requests), page.next_marker
        if marker is None or found >= limit:
            return


def _how_many(page: Any, shown: int) -> str:
    what = terminal.counted(page.total, "request")
    line = (
        f"{what} for {terminal.counted(page.servers, 'server')}" if page.total else "Nobody waits"
    )
    if page.total > shown:
        line += f", of which the first {shown} are shown"
    if page.unreadable:
        line += f"; {terminal.counted(page.unreadable, 'record')} cannot be read"
    age = page.proof_age_seconds
    if age is None:
        line += ". The scheduler that answered does not follow its feed: this may be old"
    elif age > queue_endpoint.MOST_PROOF_AGE_SECONDS:
        line += (
            f". The scheduler that answered has not heard of its feed for {age:.0f} s: this may be "
            "old"
        )
    return f"{line}."


def show_requests(printer: command.Command, requests: Sequence[Any], now: float) -> None:
    """Print requests as a table."""
    printer.print_table(
        "Requests that wait",
        (
            terminal.TableColumn("request", whole=True),
            *("state", "class", "flavor", "waits s"),
            *("servers", "reason", "rank"),
            *terminal.wide("project", "left s", "refusals", "next s", "held host", "attempt"),
        ),
        (
            (
                each.key,
                each.state,
                each.priority_class,
                each.flavor,
                terminal.seconds(max(0.0, now - each.asked_at)),
                len(each.servers),
                each.reason or None,
                each.rank or None,
                each.project_id,
                terminal.seconds(max(0.0, each.deadline_at - now)),
                each.refusals,
                terminal.seconds(each.not_before - now) if each.not_before > now else None,
                each.hold_host,
                each.attempt,
            )
            for each in requests
        ),
    )


class QueueShow(_QueueCommand):
    """Show one request that waits: why it does not fit, and what would have to be freed.

    It costs the scheduler that answers about what two requests cost.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add whose."""
        parser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="SERVER", help="uuid of any server of the request")
        parser.add_argument(
            "--hosts",
            type=number_arguments.within(int, 0, queue_endpoint.MAX_HOSTS),
            default=5,
            metavar="N",
            help="most hosts to list, where the least would have to be freed (default: "
            "%(default)s)",
        )
        return parser

    def ask(self, rpc: Any, args: argparse.Namespace) -> int:
        """Ask, and print."""
        found = rpc.get_pending(self.context(), args.server, hosts=args.hosts)
        if args.json:
            self.print_json(objects.plain(found))
        else:
            self.print_line(verdict(found))
            show_details(self, found)
        return 0


def verdict(found: Any) -> str:
    """Say in a sentence how a request stands."""
    request = found.request
    waited = terminal.seconds(max(0.0, found.now - request.asked_at))
    servers = terminal.counted(len(request.servers), "server")
    if request.state != pending.PendingState.WAITING.value:
        return f"{servers} asked for {waited} s ago: {request.state}."
    left = terminal.seconds(max(0.0, request.deadline_at - found.now))
    ahead = "" if found.ahead is None else f", {found.ahead} before it"
    return f"{servers} waited {waited} s for room{ahead}; {left} s are left."


def show_details(printer: command.Command, found: Any) -> None:
    """Print a request, why it does not fit and what would have to be freed."""
    request = found.request
    printer.print_facts(
        "Request",
        {
            "request": request.key,
            "servers": ", ".join(request.servers),
            "project": request.project_id,
            "flavor": request.flavor,
            "class": request.priority_class,
            "rank": request.rank or None,
            "needs (each)": _amounts(request.needs),
            "state": request.state,
            "reason": request.reason,
            "refusals in a row": request.refusals,
            "held host": request.hold_host,
        },
    )
    if found.why_unknown:
        printer.print_line(f"\nWhether it fits is not known: {found.why_unknown}.")
        return
    printer.print_line(
        f"\nScheduler {found.scheduler}: {terminal.counted(found.fits, 'host')} would take one of "
        f"its servers now, {found.possible} would if they had room."
    )
    printer.print_table(
        "What refuses hosts now",
        ("step", "hosts before", "refused", "hosts after"),
        ((each.name, each.before, each.before - each.after, each.after) for each in found.counts),
    )
    printer.print_table(
        "Where the least would have to be freed",
        ("host", "to be freed", "free", *terminal.wide("held for", "node", "uuid", "cell")),
        (
            (
                each.host,
                _amounts(each.missing) or "nothing",
                _amounts(each.free),
                each.held_for,
                each.node,
                each.uuid,
                each.cell,
            )
            for each in found.hosts
        ),
    )


def _amounts(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))


class _ChangingCommand(_QueueCommand):
    """A command that wants something of requests, one after the other."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add whose."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "servers", metavar="SERVER", nargs="+", help="uuid of any server of a request"
        )
        return parser

    def show(self, outcomes: Sequence[Any], *, as_json: bool, verb: str) -> int:
        """Print what became of the requests; 1 if not all is done."""
        if as_json:
            self.print_json([objects.plain(each) for each in outcomes])
        else:
            done = sum(each.outcome == "done" for each in outcomes)
            self.print_line(f"{terminal.counted(done, 'request')} {verb}.")
            for each in outcomes:
                if each.outcome != "done":
                    self.print_line(f"{each.key}: {_OUTCOMES.get(each.outcome, each.outcome)}.")
        return 0 if all(each.outcome == "done" for each in outcomes) else 1


class QueueCancel(_ChangingCommand):
    """Take requests out of the queue: all their servers end in ERROR, with a fault that says so.

    Exit status: 1 if one is being placed at the moment, or waits no more.
    """

    def ask(self, rpc: Any, args: argparse.Namespace) -> int:
        """Cancel, and print."""
        outcomes = [rpc.cancel_pending(self.context(), each) for each in args.servers]
        return self.show(outcomes, as_json=args.json, verb="taken out of the queue")


class QueuePromote(_ChangingCommand):
    """Let requests go before others: those of the greatest rank go first, whatever their class.

    Exit status: 1 if one waits no more.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add how far."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--rank",
            type=number_arguments.within(int, -queue_endpoint.MAX_RANK, queue_endpoint.MAX_RANK),
            metavar="N",
            help="the rank to give; 0 is what a request begins with (default: one more than any "
            "has)",
        )
        return parser

    def ask(self, rpc: Any, args: argparse.Namespace) -> int:
        """Promote, and print."""
        outcomes = [
            rpc.promote_pending(self.context(), each, rank=args.rank) for each in args.servers
        ]
        return self.show(outcomes, as_json=args.json, verb="promoted")


class QueueDrain(_QueueCommand):
    """Take all requests that fulfil the conditions out of the queue, as queue cancel does.

    Before the queue is switched off, or a project ends. Requests that come meanwhile wait
    as ever.

    Exit status: 1 if some are being placed at the moment, or cannot be read.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add which, and that it is meant."""
        parser = super().get_parser(prog_name)
        _add_conditions(parser)
        parser.add_argument(
            "--all", action="store_true", help="whoever waits; needed where no condition is given"
        )
        return parser

    def ask(self, rpc: Any, args: argparse.Namespace) -> int:
        """Drain page by page, and print."""
        conditions = _conditions(args)
        if not conditions and not args.all:
            raise errors.ConfigurationError(
                "--project, --class, --flavor", "", "say whose requests are to end, or give --all"
            )
        counts: dict[str, int] = {}
        left: list[str] = []
        marker = None
        with self.progress("requests", quiet=args.json) as bars:
            bar = bars.add_task("queue", total=None)
            while True:
                page = rpc.drain_pending(self.context(), **conditions, marker=marker)
                for each in page.outcomes:
                    counts[each.outcome] = counts.get(each.outcome, 0) + 1
                    left += [each.key] if each.outcome == "busy" else []
                bars.advance(bar, len(page.outcomes))
                marker = page.next_marker
                if marker is None:
                    break
        # Of those that no scheduler ever read a drain hears nothing.
        page = rpc.list_pending(self.context(), limit=1)
        unreadable = max(page.unreadable, counts.get("unreadable", 0))
        if args.json:
            self.print_json({"outcomes": counts, "busy": left, "unreadable": unreadable})
        else:
            done = counts.get("done", 0)
            self.print_line(f"{terminal.counted(done, 'request')} taken out of the queue.")
            if left:
                shown = ", ".join(left[:_NAMED]) + (" ..." if len(left) > _NAMED else "")
                self.print_line(f"{len(left)} are being placed at the moment: {shown}")
            if unreadable:
                self.print_line(
                    f"{terminal.counted(unreadable, 'record')} cannot be read: their servers end "
                    "in ERROR when their time is over."
                )
        return 1 if left or unreadable else 0


class QueueNewKey(command.Command):
    """Make a key for [nodb_queue] key. It is printed and kept nowhere else.

    Give all conductors, schedulers and APIs the same keys. A new one goes first, and the
    former one stays behind it until what was encrypted with it has left the queue.
    """

    def execute(self, args: argparse.Namespace) -> int:
        """Print one."""
        key = fernet.Fernet.generate_key().decode()
        if args.json:
            self.print_json({"key": key})
        else:
            self.print_line(key)
        return 0
