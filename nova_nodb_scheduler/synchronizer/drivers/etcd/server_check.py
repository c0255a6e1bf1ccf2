# SPDX-License-Identifier: Apache-2.0
"""What is looked at before an etcd is used: refused or warned of by name, with the remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence

from oslo_log import log

from nova_nodb_scheduler.synchronizer.drivers.etcd import clock, failures, layout, transactions
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import options as options_module
from nova_nodb_scheduler.synchronizer.drivers.support import clocks

LOG = log.getLogger(__name__)

OLDEST_VERSION = (3, 4)
#: Members whose clocks differ by more may end a lease early.
CLOCK_SKEW_SECONDS = 2.0
#: An etcd with so many revisions that keeps its very first is not compacted.
UNCOMPACTED_REVISIONS = 100_000

#: Failures at the start that an operator must mend in nova.conf.
_CONFIGURED = {
    failures.Kind.TLS: (
        "endpoints",
        "check http or https, tls_cafile, tls_certfile and tls_keyfile",
    ),
    failures.Kind.UNAUTHENTICATED: ("username", "set username and password as etcd knows them"),
    failures.Kind.PERMISSION_DENIED: (
        "username",
        (
            "grant its role readwrite on the prefix: 'etcdctl role grant-permission <role> "
            "readwrite --prefix=true <key_prefix>/'"
        ),
    ),
}


def check_files(settings: options_module.EtcdOptions) -> None:
    """Refuse certificates that cannot be read.

    :raises ConfigurationError: a file of the options is missing
    """
    for option in ("tls_cafile", "tls_certfile", "tls_keyfile"):
        path = getattr(settings, option)
        if path is not None and not os.access(path, os.R_OK):
            raise options_module.refusal(
                option, path, "there is no such file, or it cannot be read."
            )


def check_server(
    settings: options_module.EtcdOptions, connection: connection_module.Connection
) -> None:
    """Look at each member that answers, and at what stands below the prefix.

    :raises ConfigurationError: this etcd cannot be used as it is configured
    :raises BackendUnavailable: no member answers
    """
    try:
        number = _check_members(settings, connection)
        connection.authenticate()
        _check_prefix(settings, connection, number)
    except failures.Failure as failure:
        raise _translate(settings, connection, failure) from failure
    if not settings.compact:
        _warn_of_history(connection, number)


def _check_members(
    settings: options_module.EtcdOptions, connection: connection_module.Connection
) -> int:
    """Check version, cluster and clock of the members; returns one that answers."""
    answering: list[int] = []
    clusters: dict[str, str] = {}
    last: failures.Failure | None = None
    for number, endpoint in enumerate(connection.endpoints):
        try:
            version = str(connection.ask(number, "/version")["etcdserver"])
            _check_version(endpoint, version)
            status = connection.ask(number, "/maintenance/status", {})
            clusters[str(status["header"]["cluster_id"])] = str(endpoint)
        except KeyError as error:
            raise options_module.refusal("endpoints", str(endpoint), "this is no etcd.") from error
        except failures.Failure as failure:
            if failure.kind not in (
                failures.Kind.UNAUTHENTICATED,
                failures.Kind.PERMISSION_DENIED,
            ):
                last = failure
                LOG.warning(
                    "%(endpoint)s does not answer: %(why)s", {"endpoint": endpoint, "why": failure}
                )
                continue
        answering.append(number)
    if not answering:
        assert last is not None
        raise last
    if len(clusters) > 1:
        raise options_module.refusal(
            "endpoints",
            ",".join(settings.endpoints),
            f"{' and '.join(clusters.values())} belong to different clusters; name the members "
            "of one.",
        )
    _check_clocks(connection)
    connection.prefer(answering[0])
    return answering[0]


def _check_clocks(connection: connection_module.Connection) -> None:
    """Refuse members that tell no time, warn of those whose clocks differ.

    Leases are counted by whoever answers.
    """
    if not any(date for date, _, _ in connection.dates.values()):
        raise options_module.refusal(
            "endpoints", ",".join(map(str, connection.endpoints)), f"{clock.NO_DATE}."
        )
    bounds = []
    for endpoint in connection.endpoints:
        date, sent_at, received_at = connection.dates.get(endpoint, (None, 0.0, 0.0))
        seconds = clock.parse_date(date) if date else None
        if seconds is not None:
            passed = (seconds, seconds + clock.GRAIN_SECONDS, sent_at, received_at)
            bounds.append((*clocks.offset_bounds(*passed), str(endpoint)))
    if not bounds:
        return
    earliest, latest = min(bounds, key=lambda each: each[1]), max(bounds)
    apart_seconds = latest[0] - earliest[1]
    if apart_seconds > CLOCK_SKEW_SECONDS:
        LOG.warning(
            "The clock of %(late)s is at least %(apart).0f s before that of %(early)s: leases of "
            "claims may end early. Keep the members' clocks together by NTP",
            {"late": latest[2], "early": earliest[2], "apart": apart_seconds},
        )


def _check_version(endpoint: options_module.Endpoint, version: str) -> None:
    try:
        found = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return
    if found < OLDEST_VERSION:
        raise options_module.refusal(
            "endpoints", str(endpoint), f"it is etcd {version}; upgrade it to 3.4 or later."
        )


def _check_prefix(
    settings: options_module.EtcdOptions, connection: connection_module.Connection, number: int
) -> None:
    """Refuse a prefix below which somebody else keeps keys."""
    keys = layout.Layout(settings.key_prefix)
    ours = sorted((keys.deletions, keys.meta, keys.records))
    begins = [keys.prefix, *(layout.past(each) for each in ours)]
    ends = [*ours, layout.past(keys.prefix)]
    gaps = [
        transactions.get_range(begin, end, limit="1", keys_only=True)
        for begin, end in zip(begins, ends, strict=True)
    ]
    reply = connection.ask(number, "/kv/txn", transactions.transaction([], gaps))
    foreign = [key for place in range(len(gaps)) for key in transactions.held(reply, place)]
    if foreign:
        name = layout.key_of(foreign[0]).decode(errors="backslashreplace")
        raise options_module.refusal(
            "key_prefix",
            settings.key_prefix,
            f"something else keeps keys below it, such as {name!r}; choose another prefix.",
        )


def _warn_of_history(connection: connection_module.Connection, number: int) -> None:
    """Warn where nothing shows that etcd compacts its history.

    etcd tells no client how it was configured. Its command line may show it,
    and a first revision that is gone proves that somebody compacts.
    """
    if _command_line_compacts(connection, number):
        return
    try:
        reply = connection.ask(number, "/kv/range", {"key": layout.encode(b"\x00")})
        revision = transactions.revision(reply)
        connection.ask(number, "/kv/range", {"key": layout.encode(b"\x00"), "revision": "1"})
    except failures.Failure:
        # Compacted, or no permission to look.
        return
    certain = "does not compact" if revision > UNCOMPACTED_REVISIONS else "may not compact"
    LOG.warning(
        "%(label)s %(certain)s its history, and will refuse all writes when that fills its "
        "quota: start etcd with --auto-compaction-retention=10m, or set [%(group)s] compact",
        {"label": connection.label, "certain": certain, "group": options_module.GROUP},
    )


def _command_line_compacts(connection: connection_module.Connection, number: int) -> bool:
    try:
        arguments: Sequence[object] = connection.ask(number, "/debug/vars").get("cmdline", ())
    except failures.Failure:
        return False
    words = " ".join(str(argument).replace("=", " ") for argument in arguments).split()
    if "--auto-compaction-retention" not in words[:-1]:
        return False
    return words[words.index("--auto-compaction-retention") + 1] not in ("0", "0s", "0m", "0h")


def _translate(
    settings: options_module.EtcdOptions,
    connection: connection_module.Connection,
    failure: failures.Failure,
) -> Exception:
    if failure.kind in _CONFIGURED:
        option, remedy = _CONFIGURED[failure.kind]
        value = ",".join(settings.endpoints) if option == "endpoints" else settings.username
        return options_module.refusal(option, value, f"{remedy} ({failure}).")
    if "authentication failed" in failure.text:
        return options_module.refusal(
            "username", settings.username, f"etcd refuses username and password ({failure})."
        )
    if failure.kind is failures.Kind.UNSURE:
        # etcd hangs up without a word where one side speaks TLS alone.
        return connection.unavailable(f"{failure} (is it http or https?)")
    return connection.translate(failure)
