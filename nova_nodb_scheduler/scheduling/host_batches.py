# SPDX-License-Identifier: Apache-2.0
"""Many hosts at once, column by column, from one snapshot of the store.

A frame's first fill is the longest wait of a worker that starts. Hosts whose
records say nothing unusual are taken here; whoever asks takes the others one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import (
    fact_source,
    host_facts,
    host_places,
    kept_nodes,
    node_facts,
    plain_columns,
    service_facts,
)
from nova_nodb_scheduler.store import namespace_view

#: What is made on the way of so many hosts is soon used again for the next.
_HOSTS_AT_A_TIME = 4096


@attrs.frozen(eq=False)
class HostBatch:
    """Hosts, each once; lists and arrays have an item for each.

    :param numbers: by name of a frame's plain column, shape (n,)
    :param aggregates: uuids of Nova's aggregates, in the order of their ids
    """

    places: list[host_places.Place]
    numbers: dict[str, npt.NDArray[Any]]
    aggregates: list[tuple[str, ...]]
    providers: list[host_facts.ProviderFacts | None]


def read(
    source: fact_source.FactSource,
    nodes: namespace_view.NamespaceView,
    ratios: node_facts.DefaultRatios,
    aggregates: Callable[[str], tuple[str, ...]],
    known: Container[str],
) -> Iterator[HostBatch]:
    """Read all hosts that can be read together and are not known, some at a time.

    What is read of each equals what :meth:`.fact_source.FactSource.facts` says.

    :param nodes: the compute nodes of the source's snapshot
    :param aggregates: uuids of aggregates by host name
    """
    names = (
        map(nodes.vocabulary(name).texts().__getitem__, nodes.column(name).tolist())
        for name in ("cell", "host", "hypervisor_hostname")
    )
    running = source.services.of_all()
    claimed = set(filter(source.is_claimed, source.claimed_uuids()))
    provider = source.unclaimed_providers()
    kept: list[bytes] = []
    places: list[host_places.Place] = []
    services: list[service_facts.ServiceFacts] = []
    providers: list[host_facts.ProviderFacts | None] = []
    for key, digest, cell, host, node in zip(
        nodes.row_keys(), nodes.kept_digests(), *names, strict=True
    ):
        if type(digest) is not bytes or key in known or key in claimed:
            continue
        service = running.get((cell, host), _NO_SERVICE)
        # A column does not tell an empty text from none, as indexes do.
        if isinstance(service, errors.InvalidRecord) or not (cell and host):
            continue
        kept.append(digest)
        places.append(host_places.Place(key, cell, host, node))
        services.append(service)
        providers.append(provider(key))
        if len(kept) == _HOSTS_AT_A_TIME:
            yield _batch(kept, places, services, providers, ratios, aggregates)
            kept, places, services, providers = [], [], [], []
    if kept:
        yield _batch(kept, places, services, providers, ratios, aggregates)


def _batch(
    kept: list[bytes],
    places: list[host_places.Place],
    services: list[service_facts.ServiceFacts],
    providers: list[host_facts.ProviderFacts | None],
    ratios: node_facts.DefaultRatios,
    aggregates: Callable[[str], tuple[str, ...]],
) -> HostBatch:
    rows = np.frombuffer(b"".join(kept), kept_nodes.ROW)
    numbers = _numbers(rows, ratios)
    for name, dtype in _SERVICE_COLUMNS.items():
        said = (getattr(service, name) for service in services)
        numbers[name] = np.fromiter(said, dtype, len(services))
    return HostBatch(places, numbers, [aggregates(place.host) for place in places], providers)


_NO_SERVICE = service_facts.ServiceFacts()
_SERVICE_COLUMNS = {
    field.name: plain_columns.PLAIN_COLUMNS[field.name]
    for field in attrs.fields(service_facts.ServiceFacts)
}


def _numbers(
    rows: npt.NDArray[Any], ratios: node_facts.DefaultRatios
) -> dict[str, npt.NDArray[Any]]:
    numbers: dict[str, npt.NDArray[Any]] = {
        name: rows[name].copy()
        for name in plain_columns.PLAIN_COLUMNS
        if name not in _SERVICE_COLUMNS
    }
    for name, default in (("cpu", ratios.cpu), ("ram", ratios.ram), ("disk", ratios.disk)):
        column = numbers[f"{name}_allocation_ratio"]
        column[column == 0] = default
    for name in plain_columns.REPORTED:
        numbers[name][~numbers["updated"]] = 0
    return numbers
