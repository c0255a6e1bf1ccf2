# SPDX-License-Identifier: Apache-2.0
"""All that can be fuzzed, by name; a new target is a module and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tests.fuzz import decoder, journals, names, rpc, target


@attrs.frozen
class Entry:
    """A target and what it is about.

    :param needs_servers: starts real engines: not for the short run of the unit tests
    """

    about: str
    make: Callable[[], target.Target]
    needs_servers: bool = False


TARGETS: Mapping[str, Entry] = {
    "decoder": Entry(
        "payloads, as a back end may hold them, and the store behind", decoder.Decoder
    ),
    "journals": Entry(
        "slots of heartbeat journals, and a reader's arrays behind", journals.Journals
    ),
    "names": Entry("names of records: the rule, and batches over the memory driver", names.Names),
    "names-drivers": Entry(
        "the same batches over SQLite, Redis, memcached and etcd",
        names.NamesOverEngines,
        needs_servers=True,
    ),
    "rpc": Entry("messages to a worker's endpoints", rpc.Endpoints),
}
