# SPDX-License-Identifier: Apache-2.0
"""Which faults are tried on which engine."""

from __future__ import annotations

import attrs

from tests.engine_faults import disks, engine_faults, engines, fault, scheduler_faults

#: What CI tries, by engine: parts of names.
SHORT = {
    "SQLite": ("kill at driver: commit", "freeze at claims: claimed", "old backup"),
    "memcached": (
        "kill at driver: compare-and-set",
        "freeze at driver: add the log slots",
        "freeze at claims: allocation written",
        "flushed",
    ),
    "Redis": ("kill at driver: read the script's reply", "flushed", "cut during claims"),
    "etcd": ("freeze at driver: send a transaction", "killed and started"),
}

_OF_ENGINES: dict[type[engines.Engine], tuple[fault.Fault, ...]] = {
    engines.SQLite: (engine_faults.SQL_BACKUP,),
    engines.Memcached: (*engine_faults.SERVERS, *engine_faults.MEMCACHED),
    engines.Redis: (*engine_faults.SERVERS, *engine_faults.REDIS),
    engines.Etcd: (*engine_faults.SERVERS, *engine_faults.ETCD, disks.ROLLED_BACK, disks.FULL_DISK),
    engines.MariaDB: (
        *engine_faults.SERVERS,
        engine_faults.SQL_BACKUP,
        disks.ROLLED_BACK,
        disks.FULL_DISK,
    ),
    engines.PostgreSQL: (
        *engine_faults.SERVERS,
        engine_faults.SQL_BACKUP,
        disks.ROLLED_BACK,
        disks.FULL_DISK,
    ),
    engines.PostgreSQLSequencer: (),
    engines.Galera: engine_faults.GALERA,
}


def faults(kind: type[engines.Engine]) -> list[fault.Fault]:
    """Return all faults of an engine, those of one setting beside one another."""
    found = [
        *scheduler_faults.step_faults(kind),
        *scheduler_faults.READERS,
        engine_faults.RESET,
        *_OF_ENGINES[kind],
    ]
    return sorted(found, key=lambda each: (each.private, each.server, each.proxied))


def is_short(kind: type[engines.Engine], tried: fault.Fault) -> bool:
    """Return whether CI tries a fault."""
    return any(part in tried.name for part in SHORT.get(kind.name, ()))


@attrs.frozen
class Selection:
    """What is tried.

    :param drivers: parts of engines' or drivers' names, lower case; empty: all
    :param names: parts of faults' names; empty: all
    """

    drivers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    short: bool = False

    def has_engine(self, kind: type[engines.Engine]) -> bool:
        if self.short and kind.name not in SHORT:
            return False
        names = f"{kind.name} {kind.driver}".lower()
        return not self.drivers or any(each.lower() in names for each in self.drivers)

    def has_fault(self, kind: type[engines.Engine], tried: fault.Fault) -> bool:
        if self.short and not is_short(kind, tried):
            return False
        return not self.names or any(each in tried.name for each in self.names)
