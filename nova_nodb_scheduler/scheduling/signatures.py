# SPDX-License-Identifier: Apache-2.0
"""Evaluations of signatures that come again, bounded in bytes.

A signature is kept when it comes the second time: most requests repeat a few
sizes, and those that never come again would only push the others out.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable

from nova_nodb_scheduler.scheduling import evaluation

#: Evaluations kept at most; in a small cloud the signatures weigh more than they.
_KEPT = 1024
#: Signatures remembered as having come once.
_ONCE = 1024


class Signatures:
    """The evaluations used last. Use it under the engine's lock."""

    def __init__(self, limit_bytes: int, counters: evaluation.Counters) -> None:
        self._limit_bytes = limit_bytes
        self._counters = counters
        self._kept: collections.OrderedDict[Hashable, tuple[evaluation.Evaluation, int]] = (
            collections.OrderedDict()
        )
        self._bytes = 0
        #: Hashes only: that two collide costs no more than keeping one too early.
        self._once: collections.OrderedDict[int, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """How much memory the evaluations take."""
        return self._bytes

    def get(self, signature: Hashable) -> evaluation.Evaluation | None:
        """Return the evaluation of a signature, if it is kept."""
        found = self._kept.get(signature)
        if found is None:
            self._counters.signature_misses += 1
            return None
        self._counters.signature_hits += 1
        self._kept.move_to_end(signature)
        return found[0]

    def offer(self, signature: Hashable, made: evaluation.Evaluation) -> None:
        """Keep an evaluation if its signature came before and it is not too large."""
        mark = hash(signature)
        if mark not in self._once:
            self._once[mark] = None
            if len(self._once) > _ONCE:
                self._once.popitem(last=False)
            return
        self._once.move_to_end(mark)
        self.drop(signature)
        size = made.nbytes
        if size > self._limit_bytes:
            return
        self._kept[signature] = (made, size)
        self._bytes += size
        self._shrink()

    def count_again(self, signature: Hashable) -> None:
        """See how large a kept evaluation is now: a multiplier may have become a column."""
        found = self._kept.get(signature)
        if found is None:
            return
        made, before = found
        size = made.nbytes
        if size != before:
            self._kept[signature] = (made, size)
            self._bytes += size - before
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._limit_bytes or len(self._kept) > _KEPT:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
            self._counters.evictions += 1

    def drop(self, signature: Hashable) -> None:
        """Forget an evaluation."""
        found = self._kept.pop(signature, None)
        if found is not None:
            self._bytes -= found[1]
