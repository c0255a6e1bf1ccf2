# SPDX-License-Identifier: Apache-2.0
"""What configuration files say: spelling, references, TLS, SQLite's place; Placement's, too."""

from __future__ import annotations

import difflib
import os
import re
import stat
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import stevedore
from oslo_config import cfg

from nova_nodb_scheduler.cmd.doctor import findings
from nova_nodb_scheduler.conf import activation_options, nodb
from nova_nodb_scheduler.nova_adapter import start_checks
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as sql_options

SPELLING = "Options' spelling"
TLS = "TLS and credentials"
SQLITE = "SQLite's place"

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: As oslo.config finds references: ``$name`` and ``${group.name}``, not ``$$``.
_REFERENCE = re.compile(r"(?<![$\\])\$(?:\$\$)*\{?([_a-z][._a-z0-9]*)")


def groups(conf: Any) -> list[tuple[str, Collection[Any]]]:
    """Return all groups of ours with their options, those of all installed drivers included."""
    found: list[tuple[str, Collection[Any]]] = [(nodb.GROUP, nodb.NODB_OPTS)]
    # A driver whose client library is missing is passed over: nobody runs it here.
    for each in stevedore.ExtensionManager(
        loader.NAMESPACE, on_load_failure_callback=lambda *_args: None
    ):
        each.plugin.register_opts(conf)
        found += each.plugin.list_opts()
    return found


def spelling(conf: Any) -> list[findings.DoctorFinding]:
    """Find names that have no effect, and values that are not what was written."""
    texts = start_checks.written(conf)
    ours = groups(conf)
    found = [_unknown(each, ours) for each in start_checks.unknown_options(texts, ours)]
    found += _groups(texts, [group for group, _options in ours])
    found += _default(conf, texts.get("DEFAULT", {}), ours)
    found += _references(conf, texts, ours)
    start_checks.told_elsewhere(texts, ours)
    if found:
        return found
    written = sum(len(texts.get(group, {})) for group, _options in ours)
    return [findings.fine(SPELLING, f"All {written} that are set in groups of ours exist.")]


def _unknown(
    each: start_checks.UnknownOption, ours: Iterable[tuple[str, Any]]
) -> findings.DoctorFinding:
    elsewhere = [
        group for group, options in ours if each.name in {option.dest for option in options}
    ]
    remedy = (
        f"Move it to [{elsewhere[0]}]."
        if elsewhere
        else f"Write {' or '.join(each.nearest)}, or remove it."
        if each.nearest
        else "Remove it; the sample configuration has all names."
    )
    return findings.warning(
        SPELLING, f"[{each.group}] {each.name} is no option and has no effect.", remedy
    )


def _groups(texts: Mapping[str, Any], ours: Sequence[str]) -> list[findings.DoctorFinding]:
    found = []
    for group in sorted(texts.keys() - set(ours)):
        nearest = difflib.get_close_matches(group, ours, n=1, cutoff=0.8)
        if nearest:
            found.append(
                findings.warning(
                    SPELLING,
                    f"Nobody reads the group [{group}].",
                    f"Write [{nearest[0]}], if that is meant.",
                )
            )
    return found


def _default(
    conf: Any, theirs: Mapping[str, str], ours: Iterable[tuple[str, Any]]
) -> list[findings.DoctorFinding]:
    """Find options of ours that stand in [DEFAULT], and its two that are misspelt."""
    places = {option.dest: group for group, options in ours for option in options}
    own = [option.dest for option in activation_options.ACTIVATION_OPTS]
    found = []
    for name in sorted(theirs):
        if name in conf:
            continue
        text = f"[DEFAULT] {name} is no option and has no effect."
        nearest = difflib.get_close_matches(name, own, n=1, cutoff=0.85)
        if nearest:
            found.append(findings.warning(SPELLING, text, f"Write {nearest[0]}."))
        elif name in places:
            found.append(findings.warning(SPELLING, text, f"Move it to [{places[name]}]."))
    return found


def _references(
    conf: Any, texts: Mapping[str, Mapping[str, str]], ours: Iterable[tuple[str, Any]]
) -> list[findings.DoctorFinding]:
    """Find secrets of which oslo.config replaces a part by the value of another option."""
    found = []
    for group, options in ours:
        for option in options:
            text = texts.get(group, {}).get(option.dest)
            if not option.secret or text is None:
                continue
            for name in _REFERENCE.findall(text):
                if name != "state_path" and name in conf:
                    found.append(
                        findings.warning(
                            SPELLING,
                            f"In [{group}] {option.name} a '$' is taken for a reference to the "
                            "option of that name, and its value is used.",
                            "Write '$$' for each '$' that is meant, as in a password.",
                        )
                    )
    return found


# -- TLS ------------------------------------------------------------------------------


def tls(conf: Any, options: Any) -> list[findings.DoctorFinding]:
    """Tell where records and credentials travel unprotected."""
    driver = str(options.synchronizer)
    judge = {
        "sqlalchemy": _of_sql,
        "redis": _of_redis,
        "etcd": _of_etcd,
        "memcached": _of_memcached,
    }.get(driver)
    if judge is None:
        return [findings.fine(TLS, f"{driver} speaks over no network.")]
    loader.load_class(driver).register_opts(conf)
    hosts, protected, has_password, remedy = judge(conf)
    far = sorted(host for host in hosts if host not in _LOOPBACK and not host.startswith("/"))
    if not far:
        return [findings.fine(TLS, "The back end is reached within this host.")]
    if protected:
        return [findings.fine(TLS, f"Connections to {', '.join(far)} use TLS.")]
    what = "records and the password" if has_password else "records"
    return [findings.warning(TLS, f"To {', '.join(far)} {what} travel in clear text.", remedy)]


#: Hosts, whether they are reached by TLS, whether there is a password, what to do.
_Transport = tuple[Sequence[str], bool, bool, str]


def _of_sql(conf: Any) -> _Transport:
    url = engines.parse(sql_options.read(conf).connection)
    if url.drivername.startswith("sqlite"):
        return (), True, False, ""
    query = {name: str(value) for name, value in url.query.items()}
    if url.get_backend_name() == "mysql":
        protected = any(name.startswith("ssl") for name in query)
        remedy = "Add ssl_ca=/path/of/ca.pem to the URL."
    else:
        protected = query.get("sslmode") in ("require", "verify-ca", "verify-full")
        remedy = "Add sslmode=verify-full and sslrootcert=/path/of/ca.pem to the URL."
    remedy += " On a network that nobody else reaches it may stay as it is."
    host = query.get("unix_socket") or query.get("host") or url.host or "localhost"
    return [host], protected, url.password is not None, remedy


def _of_redis(conf: Any) -> _Transport:
    group = conf.nodb_redis
    parts = urllib.parse.urlsplit(group.url)
    remedy = "Write rediss:// in [nodb_redis] url, and set tls_cafile."
    host = parts.hostname or parts.path
    return [host], parts.scheme == "rediss", group.password is not None, remedy


def _of_etcd(conf: Any) -> _Transport:
    group = conf.nodb_etcd
    parts = [urllib.parse.urlsplit(each) for each in group.endpoints]
    remedy = "Write https:// in [nodb_etcd] endpoints, and set tls_cafile."
    protected = all(each.scheme == "https" for each in parts)
    return [each.hostname or "" for each in parts], protected, group.password is not None, remedy


def _of_memcached(conf: Any) -> _Transport:
    group = conf.nodb_memcached
    hosts = [each if each.startswith("/") else each.rpartition(":")[0] for each in group.servers]
    remedy = "Set [nodb_memcached] tls_enabled = true, or keep it on a network of its own."
    return [host.strip("[]") for host in hosts], bool(group.tls_enabled), False, remedy


# -- SQLite -----------------------------------------------------------------------------


def sqlite_place(
    conf: Any, options: Any, hosts: Callable[[], Collection[str]]
) -> list[findings.DoctorFinding]:
    """Tell whether an SQLite file is shared by hosts, and who may read it.

    :param hosts: asks for the hosts on which services run
    """
    if options.synchronizer != "sqlalchemy":
        return []
    url = engines.parse(sql_options.read(conf).connection)
    if not url.drivername.startswith("sqlite"):
        return []
    found = []
    named = sorted(hosts())
    if len(named) > 1:
        found.append(
            findings.warning(
                SQLITE,
                f"The back end is a file of one machine, and services run on {len(named)} hosts: "
                f"{', '.join(named[:5])}{' ...' if len(named) > 5 else ''}.",
                "If these are several machines, name a MariaDB or PostgreSQL database in "
                "[nodb_sqlalchemy] connection, on all of them.",
            )
        )
    path = url.database or ""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as failure:
        return [*found, findings.unknown(SQLITE, f"{path}: {failure.strerror}.")]
    if mode & 0o077:
        found.append(
            findings.warning(
                SQLITE,
                f"{path} may be read or written by others (mode {mode:04o}).",
                f"chmod 600 {path}",
            )
        )
    return found or [findings.fine(SQLITE, f"{path}, for one host and its user alone.")]


RETRIES = "Placement's retries"
DEFAULT_PATH = "/etc/placement/placement.conf"
OPTION = "--placement-config"

_GROUP, _NAME = "placement", "allocation_conflict_retry_count"
_DEFAULT = 10


def placement_retries(path: str | None) -> list[findings.DoctorFinding]:
    """Tell how often Placement repeats an allocation that met another one.

    Repeated, it does not look at the capacity again: writers that race over-commit.

    :param path: of its configuration; None to look where packages lay it
    """
    if path is None and not os.path.exists(DEFAULT_PATH):
        return [
            findings.fine(
                RETRIES, f"Not looked at: there is no {DEFAULT_PATH} here ({OPTION} names another)."
            )
        ]
    path = path or DEFAULT_PATH
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
        count = int(sections.get(_GROUP, {}).get(_NAME, [str(_DEFAULT)])[-1])
    except OSError as failure:
        return [
            findings.unknown(RETRIES, f"{path}: {failure.strerror}.", f"Name it with {OPTION}.")
        ]
    except (cfg.Error, cfg.ParseError, ValueError) as failure:
        return [findings.unknown(RETRIES, f"{path}: {failure}")]
    text = f"[{_GROUP}] {_NAME} is {count} in {path}."
    if count == 1:
        return [findings.fine(RETRIES, text)]
    return [
        findings.warning(
            RETRIES,
            f"{text} Allocations of other services (neutron, cyborg, blazar, operators) that race "
            "with Nova's may over-commit a provider, as in stock Nova.",
            "Set it to 1 where Placement runs: Nova repeats a refused allocation by itself.",
        )
    ]
