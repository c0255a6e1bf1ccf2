# SPDX-License-Identifier: Apache-2.0
"""Changes decoded records by read, propose, compare-and-set, repeat.

The loop below claims, group claims and leases. It is safe after an unknown
outcome because proposers are idempotent: each marks its change with an id of
its own, and finding that id in the record read answers "done already".
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

State = Mapping[str, Any]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Unwritten(enum.Enum):
    """Why a change did not come to an answer."""

    #: Others won every round; nothing of ours was written.
    LOST = "lost"
    #: A write may or may not have been carried out, and reading failed.
    UNKNOWN = "unknown"
    #: The back end went away; nothing was written. Only of edits in a batch.
    UNAVAILABLE = "unavailable"
    #: A newer release wrote the record. Only of edits in a batch.
    UNREADABLE = "unreadable"
    #: No record may have its name; nothing was written.
    REFUSED = "refused"


@attrs.frozen
class Proposal(Generic[T_co]):
    """What a proposer makes of the state it was shown.

    :param answer: what the caller of the edit gets if this proposal stands
    :param state: the state to write; None if the record shall stay as it is
    :param accepted: False for a refusal: nothing of the whole edit is written
    """

    answer: T_co
    state: State | None = None
    accepted: bool = True


@attrs.frozen
class Edited(Generic[T]):
    """An edit that came to its end.

    :param answer: of the proposal that stands (in an edit of several records
        the first refusal, else the last answer)
    :param answers: of all proposals, in order; of a refusal only that one
    :param revision: of the (last) record, as read or as written
    :param record: as it was written, of an edit in a batch
    :param epoch: that it was written in, where the driver says it
    """

    answer: T
    answers: tuple[T, ...]
    revision: int
    record: records.Record | None = None
    epoch: str | None = None


#: From a decoded state (None: no live record) and the version of its last
#: write (then 0) to a proposal. Called again each round with what was read
#: then; must not change its argument.
Propose = Callable[[State | None, int], Proposal[T]]


def pause_briefly(round_number: int) -> None:
    """Sleep up to 20 ms, more at random with each round lost.

    Without it, writers that lost together read together and lose together.
    """
    time.sleep(random.uniform(0, 0.002 * min(round_number, 10)))


class RecordEditor:
    """Edits records of one synchronizer; any thread may call it.

    :param namespaces: of the records to be edited
    :param rounds: tries before an edit is given up as lost; each costs a read
        and a write. In every round some writer wins, so with n writers of one
        record n rounds nearly always do.
    :param pause: called with the number of rounds lost so far, before the next one
    :param count_lost: told of compare-and-sets that were lost, with how many
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespaces: Sequence[namespaces_model.Namespace],
        rounds: int = 64,
        pause: Callable[[int], None] = pause_briefly,
        count_lost: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._synchronizer = synchronizer
        self._namespaces = {namespace.name: namespace for namespace in namespaces}
        self._rounds = rounds
        self._pause = pause
        self._count_lost = count_lost

    def read(self, key: records.RecordKey) -> tuple[State | None, int, int]:
        """Return a record's decoded state (None: no live record), revision and version.

        :raises UndecodableRecord: its bytes are not of a schema known here
        """
        return self._decoded(key, self._synchronizer.read([key]))

    def edit(self, key: records.RecordKey, propose: Propose[T]) -> Edited[T] | Unwritten:
        """Change one record; see :meth:`edit_all`."""
        return self.edit_all([(key, propose)])

    def edit_all(
        self, proposers: Sequence[tuple[records.RecordKey, Propose[T]]]
    ) -> Edited[T] | Unwritten:
        """Change several records in one all-or-nothing write.

        Blocks for a read and a write per round.

        :raises BackendUnavailable: nothing was written
        :raises CapabilityMissing: more records than the driver takes at once
        :raises UndecodableRecord: nothing was written
        """
        unknown = False
        for round_number in range(self._rounds):
            if round_number:
                self._pause(round_number)
            try:
                found = self._synchronizer.read([key for key, _ in proposers])
                edited, writes = self._propose(proposers, found)
                if not writes:
                    return edited
                results = self._synchronizer.write(writes, atomic=len(writes) > 1)
            except errors.BackendUnavailable:
                if unknown:
                    return Unwritten.UNKNOWN
                raise
            if all(result.won for result in results):
                last = results[-1].record
                return attrs.evolve(edited, revision=last.revision if last else edited.revision)
            if any(result.verdict is records.Verdict.REFUSED for result in results):
                return Unwritten.REFUSED
            # For good: that write may have been carried out and then lost its
            # recognition to somebody else's.
            unknown |= any(result.verdict is records.Verdict.UNKNOWN for result in results)
            self._count_lost(sum(r.verdict is records.Verdict.LOST for r in results))
        return Unwritten.UNKNOWN if unknown else Unwritten.LOST

    def _propose(
        self,
        proposers: Sequence[tuple[records.RecordKey, Propose[T]]],
        found: Mapping[records.RecordKey, records.Record],
    ) -> tuple[Edited[T], list[records.Write]]:
        writes: list[records.Write] = []
        answers: list[T] = []
        revision = 0
        for key, propose in proposers:
            state, revision, version = self._decoded(key, found)
            proposal = propose(state, version)
            if not proposal.accepted:
                return Edited(proposal.answer, (proposal.answer,), revision), []
            answers.append(proposal.answer)
            if proposal.state is not None:
                payload = codec.encode(
                    proposal.state, self._namespaces[key.namespace].schema, record=str(key)
                )
                writes.append(records.Write(key, revision, payload))
        return Edited(answers[-1], tuple(answers), revision), writes

    def _decoded(
        self,
        key: records.RecordKey,
        found: Mapping[records.RecordKey, records.Record],
    ) -> tuple[State | None, int, int]:
        record = found.get(key)
        if record is None or record.deleted:
            return None, 0, 0
        decoded = codec.decode(record.payload)
        codec.check_readable(decoded.schema, self._namespaces[key.namespace])
        return decoded.state, record.revision, record.version
