# SPDX-License-Identifier: Apache-2.0
"""Which code made a checkpoint: rows that other code decoded are not this one's.

Numbers of releases do not tell: a patched installation has the number of the one that
was patched. So it is the sources themselves that count, of all that decodes, digests and
keeps records, and what the namespaces declare; whoever changes a line reads a snapshot once.

The sources on the disk are those of this process only while they are older than it: a
worker that is forked anew behind an upgrade runs the former release's code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pathlib
import sys
import time
import zlib
from collections.abc import Sequence

import nova_nodb_scheduler
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract
from nova_nodb_scheduler.wire import decoded_sizes

#: When this process, or the one that it was forked from, had its code.
_LOADED_AT_SECONDS = time.time()

_PACKAGES = ("model", "scheduling", "store", "synchronizer/checkpoint", "wire")


def identify(
    driver: str, declared: Sequence[namespaces.Namespace]
) -> checkpoint_contract.CodeIdentity | None:
    """Return who this process is to a checkpoint; None where its sources cannot be told.

    :param declared: of the store; their order does not matter
    """
    sources = sources_digest(_LOADED_AT_SECONDS)
    if sources is None:
        return None
    found = hashlib.sha256(sources.encode())
    for part in (
        sys.implementation.cache_tag,
        sys.byteorder,
        zlib.ZLIB_RUNTIME_VERSION,
        # What another bound refuses is kept aside, and not in a store.
        decoded_sizes.present().text_bytes,
        *sorted(map(_declaration, declared)),
    ):
        found.update(f"{part}\n".encode())
    schemas = {namespace.name: str(namespace.schema) for namespace in declared}
    return checkpoint_contract.CodeIdentity(driver, found.hexdigest(), schemas)


def _declaration(namespace: namespaces.Namespace) -> str:
    """Return what rows of a namespace depend on; another package may declare it."""
    row = namespace.digest_row
    return repr(
        (
            namespace.name,
            str(namespace.schema),
            namespace.columns,
            namespace.indexes,
            _source_of(namespace.digest),
            None if row is None else row.descr,
            _source_of(type(namespace.digest_form)),
        )
    )


def _source_of(made: object) -> str:
    """Return the source of the module that a function or a class is of; its name without one."""
    module = inspect.getmodule(made)
    try:
        return "" if module is None else hashlib.sha256(_text_of(module)).hexdigest()
    except (OSError, TypeError):
        return getattr(module, "__name__", "")


def _text_of(module: object) -> bytes:
    return inspect.getsource(module).encode()  # type: ignore[arg-type]


@functools.cache
def sources_digest(loaded_at_seconds: float) -> str | None:
    """Return what stands for the sources; None where they cannot be read, or are newer.

    :param loaded_at_seconds: since the epoch, by the clock of files
    """
    root = pathlib.Path(nova_nodb_scheduler.__file__).parent
    found, count = hashlib.sha256(), 0
    try:
        for package in _PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                # A package gives its files times of its own, but not this one.
                if path.stat().st_ctime > loaded_at_seconds:
                    return None
                found.update(f"{path.relative_to(root)}\n".encode())
                found.update(path.read_bytes())
                count += 1
    except OSError:
        return None
    return found.hexdigest() if count else None
