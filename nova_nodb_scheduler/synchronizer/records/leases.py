# SPDX-License-Identifier: Apache-2.0
"""Leases: work that only one process may do at a time.

One record per lease, changed by compare-and-set. A lease ends by the back
end's clock, never by a holder's. The record's revision is the fencing token:
it grows with every acquisition and renewal, so whoever is handed a token can
refuse a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor


@attrs.frozen
class Lease:
    """A lease as it stood when the record was read or written.

    :param holder: id of the process that holds it
    :param expires_seconds: end, by the back end's clock
    :param token: fencing token, growing within an epoch
    """

    name: str
    holder: str
    expires_seconds: float
    token: int


@attrs.frozen
class NotHeld:
    """The lease is not the caller's.

    :param lease: whose it is; None if it is free, was lost to too many
        others at once, or the outcome could not be learnt
    """

    lease: Lease | None = None


class LeaseKeeper:
    """Takes, renews and gives back one lease for one process; any thread may call it.

    :param holder_id: unique per process *start*: a process that comes back
        under the id of a former one would take that one's lease for its own
    :param ttl_seconds: how long a lease lasts without renewal; renew at a
        third of it
    :param pause: see :class:`record_editor.RecordEditor`
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        name: str,
        holder_id: str,
        ttl_seconds: float,
        pause: Callable[[int], None] = record_editor.pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self._name = name
        self._holder_id = holder_id
        self._ttl_seconds = ttl_seconds
        self._key = records.RecordKey(known_namespaces.LEASES.name, name)
        self._editor = record_editor.RecordEditor(
            synchronizer, [known_namespaces.LEASES], pause=pause
        )

    def acquire(self) -> Lease | NotHeld:
        """Take the lease if it is free, has expired, or is ours already.

        Does not wait for it. A second call renews.

        :raises BackendUnavailable: nothing was written
        """
        return self._extend(take=True)

    def renew(self) -> Lease | NotHeld:
        """Extend the lease; a lease that ended or changed hands is not taken back.

        A holder that slept past the end learns here that it lost the lease,
        even if nobody took it meanwhile: someone may have, and let it go.

        :raises BackendUnavailable: nothing was written; the lease runs on
            until its end
        """
        return self._extend(take=False)

    def release(self) -> None:
        """Give the lease up; no-op if it is not ours.

        :raises BackendUnavailable: nothing was written; it ends by itself
        """

        def propose(
            state: record_editor.State | None, _version: int
        ) -> record_editor.Proposal[None]:
            if state is None or state.get("holder") != self._holder_id:
                return record_editor.Proposal(None)
            # Not a tombstone: the fencing token must go on growing.
            return record_editor.Proposal(None, {"holder": "", "expires_seconds": 0.0})

        self._editor.edit(self._key, propose)

    def holder(self) -> Lease | None:
        """Return the lease that runs now, whoever holds it.

        :raises BackendUnavailable: not known
        """
        state, revision, _ = self._editor.read(self._key)
        return self._running(state, revision, self._synchronizer.now_seconds())

    def _extend(self, *, take: bool) -> Lease | NotHeld:
        # Read before the record: a pause in between makes the lease shorter,
        # never longer than the back end's clock allows.
        now_seconds = self._synchronizer.now_seconds()

        def propose(
            state: record_editor.State | None, _version: int
        ) -> record_editor.Proposal[Lease | NotHeld]:
            running = self._running(state, 0, now_seconds)
            if running is not None and running.holder != self._holder_id:
                return record_editor.Proposal(NotHeld(running))
            if running is None and not take:
                return record_editor.Proposal(NotHeld())
            expires = now_seconds + self._ttl_seconds
            return record_editor.Proposal(
                Lease(self._name, self._holder_id, expires, 0),
                {"holder": self._holder_id, "expires_seconds": expires},
            )

        edited = self._editor.edit(self._key, propose)
        if isinstance(edited, record_editor.Unwritten):
            return NotHeld()
        if isinstance(edited.answer, NotHeld):
            if edited.answer.lease is None:
                return edited.answer
            return NotHeld(attrs.evolve(edited.answer.lease, token=edited.revision))
        return attrs.evolve(edited.answer, token=edited.revision)

    def _running(
        self, state: record_editor.State | None, revision: int, now_seconds: float
    ) -> Lease | None:
        if state is None or not state["holder"] or state["expires_seconds"] <= now_seconds:
            return None
        return Lease(self._name, state["holder"], state["expires_seconds"], revision)
