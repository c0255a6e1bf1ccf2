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


class _Untold(Exception):
    """A source cannot be read, or is not that of this process."""


def identify(
    driver: str, declared: Sequence[namespaces.Namespace]
) -> checkpoint_contract.CodeIdentity | None:
    """Return who this process is to a checkpoint; None where its sources cannot be told.

    :param declared: of the store; their order does not matter
    """
    code = code_of(declared, _LOADED_AT_SECONDS)
    if code is None:
        return None
    schemas = {namespace.name: str(namespace.schema) for namespace in declared}
    return checkpoint_contract.CodeIdentity(driver, code, schemas)


def code_of(declared: Sequence[namespaces.Namespace], loaded_at_seconds: float) -> str | None:
    """Return what stands for the sources; None where they cannot be read, or are newer.

    :param loaded_at_seconds: since the epoch, by the clock of files
    """
    found = hashlib.sha256()
    try:
        for part in (
            sys.implementation.cache_tag,
            sys.byteorder,
            zlib.ZLIB_RUNTIME_VERSION,
            # What another bound refuses is kept aside, and not in a store.
            decoded_sizes.present().text_bytes,
            _own_sources(loaded_at_seconds),
            *sorted(_declaration(each, loaded_at_seconds) for each in declared),
        ):
            found.update(f"{part}\n".encode())
    except (OSError, _Untold):
        return None
    return found.hexdigest()


def _declaration(namespace: namespaces.Namespace, loaded_at_seconds: float) -> str:
    """Return what rows of a namespace depend on; another package may declare it."""
    row, form = namespace.digest_row, namespace.digest_form
    return repr(
        (
            namespace.name,
            str(namespace.schema),
            namespace.columns,
            namespace.indexes,
            None if row is None else row.descr,
            *(
                None if made is None else _source_of(made, loaded_at_seconds)
                for made in (namespace.digest, None if form is None else type(form))
            ),
        )
    )


def _source_of(made: object, loaded_at_seconds: float) -> tuple[str, str]:
    """Return the name of a function or a class, and what stands for its module's source."""
    name = getattr(made, "__qualname__", "")
    path = getattr(sys.modules.get(getattr(made, "__module__", "")), "__file__", None)
    if not name or path is None:
        raise _Untold(made)
    return name, hashlib.sha256(_read(pathlib.Path(path), loaded_at_seconds)).hexdigest()


@functools.cache
def _own_sources(loaded_at_seconds: float) -> str:
    root = pathlib.Path(nova_nodb_scheduler.__file__).parent
    found, count = hashlib.sha256(), 0
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(f"{path.relative_to(root)}\n".encode())
            found.update(_read(path, loaded_at_seconds))
            count += 1
    if not count:
        raise _Untold(root)
    return found.hexdigest()


def _read(path: pathlib.Path, loaded_at_seconds: float) -> bytes:
    # A package gives its files times of its own, but not this one.
    if path.stat().st_ctime > loaded_at_seconds:
        raise _Untold(path)
    return path.read_bytes()
