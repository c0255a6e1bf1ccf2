# SPDX-License-Identifier: Apache-2.0
"""Takes the steps of requests that wait for room, each by one compare-and-set.

=============== ========================= ==========================================
step            from, to                  by
=============== ========================= ==========================================
``create``      nothing, ``scheduling``   the conductor that was asked, or nova-api
``park``        scheduling, ``waiting``   who has it in hand
``grant``       waiting or a lease that   any scheduler; the attempt counts one more
                ended, ``granted``
``take``        granted, ``scheduling``   any conductor
``begin``       scheduling, ``building``  who has it in hand
``mapped``      building                  who has it in hand
``sent``        building                  who has it in hand
``place``       building                  who has it in hand, and lets go of it
``arrive``      building, nothing         any scheduler that sees its servers on hosts
``rest``        scheduling or building    who has it in hand, and lets go of it
``give_up``     scheduling                who has it in hand
``finish``      any, nothing              who has it in hand
``end_waiting`` waiting, nothing          anybody, for one of whom no server is left
=============== ========================= ==========================================

**No record without its payload** but where nothing is left to be built of it. The payload
is written before the record; a request ends by saying so in the record, then the payload is
removed, then the record. A write that was given up and arrives late can bring a record back
where it is gone, for the compare-and-set of a creation wins there. It has no payload then,
by which whoever takes it knows: a payload whose writing was in doubt is never followed by a
record, so that none of its own comes late.

**A creation in doubt** (:class:`MaybeCreated`) is not a failure: the record may stand, or
come to. Its holder goes on as if it stood, and gives the request with its next step,
which writes it where it does not: then the late one loses. Where the payload is gone, too,
the record came, and somebody else has ended it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.pending import pending_rules
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.wire import codec

_PENDING = known_namespaces.PENDING
_PAYLOADS = known_namespaces.PENDING_PAYLOADS


@attrs.frozen
class MaybeCreated:
    """A creation whose outcome could not be learnt: the record may stand, or come to."""

    request: pending.PendingRequest


_Change = Callable[[pending.PendingRequest | None], pending_rules.Step]


def record_key(key: str) -> records.RecordKey:
    """Return the name of a request's record."""
    return records.RecordKey(_PENDING.name, key)


def payload_key(key: str) -> records.RecordKey:
    """Return the name of the record that holds a request's payload."""
    return records.RecordKey(_PAYLOADS.name, key)


class PendingLedger:
    """The records of one back end; any thread may call it. Every method blocks for it.

    Steps raise BackendUnavailable where nobody knows whether they were taken; the same
    call again settles it. What may not be taken is answered :class:`.Superseded`.

    :param lease_seconds: how long who has a request in hand may be silent
    :param clock: the back end's seconds; by default it is asked
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        lease_seconds: float,
        clock: Callable[[], float] | None = None,
        pause: Callable[[int], None] = record_editor.pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self.lease_seconds = lease_seconds
        #: Time by the back end's clock, by which all times of records are.
        self.now_seconds = clock or synchronizer.now_seconds
        self._editor = record_editor.RecordEditor(synchronizer, [_PENDING, _PAYLOADS], pause)

    # -- reads -------------------------------------------------------------------------

    def read(self, key: str) -> pending.PendingRequest | None:
        """Return a request; None where it has ended.

        :raises UndecodableRecord: its record is none of a request
        """
        return _request(key, self._editor.read(record_key(key))[0])

    def standing(
        self, key: str, if_absent: pending.PendingRequest | None = None
    ) -> pending.PendingRequest | None:
        """Return a request as :meth:`read`, or as it is to stand while its creation is in doubt.

        :param if_absent: of a creation in doubt, as it was to stand
        :raises UndecodableRecord: its record is none of a request
        """
        standing = self.read(key)
        return self._made_good(if_absent) if standing is None else standing

    def read_payload(self, key: str) -> str | None:
        """Return what a request was made with, as it was given; None where it is gone.

        :raises UndecodableRecord: its record holds none
        """
        state = self._editor.read(payload_key(key))[0]
        if state is None:
            return None
        text = state.get("payload")
        if not isinstance(text, str):
            raise errors.UndecodableRecord(f"{payload_key(key)} holds no payload")
        return text

    # -- a conductor's, or nova-api's -----------------------------------------------------

    def create(
        self, request: pending.PendingRequest, payload: str
    ) -> pending_rules.Step | MaybeCreated:
        """Keep a new request, in the hand of whom its grant names.

        :raises BackendUnavailable: it is not kept, and will not be
        :raises PayloadTooLarge: likewise
        """
        standing = self.read(request.key)
        if standing is not None:
            return pending_rules.created(standing, request)
        if not self._write_payload(request, payload):
            raise errors.BackendUnavailable(
                self._synchronizer.name, "whether a request was kept is not known"
            )
        edited = self._edit(request.key, functools.partial(pending_rules.created, request=request))
        if edited is record_editor.Unwritten.UNKNOWN:
            return MaybeCreated(request)
        return self._answer(edited)

    def take(self, key: str, attempt: int, owner: str) -> pending_rules.Step:
        """Take in hand what a scheduler granted."""
        until = self._lease_end()
        holding = pending_rules.Holding(key, attempt, owner)
        return self._step(key, lambda now: pending_rules.taken(now, holding, until))

    def park(
        self,
        holding: pending_rules.Holding,
        reason: str,
        pause_seconds: float,
        if_absent: pending.PendingRequest | None = None,
    ) -> pending_rules.Step:
        """Put a request to wait.

        :param pause_seconds: no attempt before that has passed
        :param if_absent: of a creation in doubt, as it was to stand
        """
        now_seconds = self.now_seconds()

        def change(standing: pending.PendingRequest | None) -> pending_rules.Step:
            if standing is None:
                standing = self._made_good(if_absent)
            until = now_seconds + pause_seconds
            return pending_rules.parked(standing, holding, reason, now_seconds, until)

        return self._step(holding.key, change)

    def begin(
        self,
        holding: pending_rules.Holding,
        if_absent: pending.PendingRequest | None = None,
        kept: Collection[str] = (),
    ) -> pending_rules.Step:
        """Say that servers will be written to cells now.

        :param if_absent: of a creation in doubt, as it was to stand
        :param kept: servers that stand in a cell already and go on from there
        """

        def change(standing: pending.PendingRequest | None) -> pending_rules.Step:
            if standing is None:
                standing = self._made_good(if_absent)
            return pending_rules.begun(standing, holding, kept)

        return self._step(holding.key, change)

    def mapped(self, holding: pending_rules.Holding, server: str) -> pending_rules.Step:
        """Say that a server is mapped to its cell, and its build request about to be deleted.

        For who has found that request there behind the mapping: a user who deletes it from
        then on sees the mapping, and deletes the instance in the cell, too.
        """
        return self._step(
            holding.key, lambda standing: pending_rules.mapped(standing, holding, server)
        )

    def sent(
        self, holding: pending_rules.Holding, server: str, *, again: bool = False
    ) -> pending_rules.Step:
        """Say that a server is about to be sent; answered otherwise, it must not be.

        A second call is refused, whoever makes it: the first may have led to the sending.

        :param again: the caller's former call raised BackendUnavailable, and it sent nothing
        """
        asked = again

        def change(standing: pending.PendingRequest | None) -> pending_rules.Step:
            nonlocal asked
            step = pending_rules.sent(standing, holding, server, asked_before=asked)
            asked = True
            return step

        return self._step(holding.key, change)

    def place(self, holding: pending_rules.Holding, seconds: float) -> pending_rules.Step:
        """Say that all servers which are left were sent, and let go of the request.

        :param seconds: it is looked at again behind them
        """
        now_seconds = self.now_seconds()
        return self._step(
            holding.key,
            lambda now: pending_rules.placed(now, holding, now_seconds, now_seconds + seconds),
        )

    def give_up(self, holding: pending_rules.Holding, server: str) -> pending_rules.Step:
        """Say that the host which a server was sent to has given it up: it may be sent again."""
        now_seconds = self.now_seconds()
        return self._step(
            holding.key, lambda now: pending_rules.given_up(now, holding, server, now_seconds)
        )

    def rest(
        self, holding: pending_rules.Holding, seconds: float, uncertain: Collection[str]
    ) -> pending_rules.Step:
        """Let a request lie in nobody's hand for a while, then be looked at anew.

        :param uncertain: servers of which nobody knows whether they were sent
        """
        until = self.now_seconds() + seconds
        return self._step(
            holding.key, lambda now: pending_rules.rested(now, holding, until, uncertain)
        )

    def finish(self, holding: pending_rules.Holding) -> bool:
        """End a request, whatever is left of it; False where it is somebody else's now."""
        return self._end(holding.key, holding.is_of)

    def renew(
        self, holdings: Iterable[pending_rules.Holding]
    ) -> dict[pending_rules.Holding, pending_rules.Superseded]:
        """Make leases last from now on; return those that are not the caller's any more.

        One read and one write for all; who loses to another step is renewed next time.

        :raises BackendUnavailable: leases run on until their ends
        """
        wanted = list(holdings)
        if not wanted:
            return {}
        until = self._lease_end()
        lost: dict[pending_rules.Holding, pending_rules.Superseded] = {}
        writes = []
        found = self._synchronizer.read({record_key(holding.key) for holding in wanted})
        for holding in wanted:
            key = record_key(holding.key)
            renewed = functools.partial(pending_rules.renewed, holding=holding, until_seconds=until)
            # One that cannot be read tells its holder with its next step. Others must not lose
            # theirs for it.
            step, write = _stepped(key, found.get(key), renewed)
            if isinstance(step, pending_rules.Superseded):
                lost[holding] = step
            if write is not None:
                writes.append(write)
        self._write(writes)
        return lost

    # -- a scheduler's ----------------------------------------------------------------------

    def arrive(self, keys: Collection[str]) -> None:
        """End requests whose servers were all seen on hosts; those that are placed.

        Four calls for all of them. Whose record changes meanwhile is left; one that is broken
        off says that nothing is left of it, and whoever comes to have it ends it.

        :raises BackendUnavailable: some are left
        """
        ended: dict[str, int] = {}
        writes = []
        for name, record in self._synchronizer.read([record_key(key) for key in keys]).items():
            step, write = _stepped(name, record, pending_rules.arrived)
            if write is not None:
                writes.append(write)
            elif isinstance(step, pending.PendingRequest):
                # It was said before, by who broke off.
                ended[name.key] = record.revision
        for write, result in zip(writes, self._write(writes), strict=True):
            if result.won and result.record is not None:
                ended[write.key.key] = result.record.revision
        payloads = self._synchronizer.read([payload_key(key) for key in ended])
        self._write(
            [
                records.Write(name, record.revision, deleted=True)
                for name, record in payloads.items()
                if not record.deleted
            ]
        )
        self._write([records.Write(record_key(key), at, deleted=True) for key, at in ended.items()])

    def _write(self, writes: list[records.Write]) -> Sequence[records.WriteResult]:
        return self._synchronizer.write(writes) if writes else ()

    def grant(
        self,
        key: str,
        attempt: int,
        owner: str,
        purpose: pending.Purpose = pending.Purpose.PLACE,
        host: str = "",
    ) -> pending_rules.Step:
        """Let conductors try a request.

        :param attempt: of the record that the scheduler judged by
        :param owner: id of this grant, as of a holding
        :param host: node uuid of the host whose room it is for
        """
        now_seconds = self.now_seconds()
        wanted = pending_rules.Granting(
            attempt, owner, now_seconds + self.lease_seconds, purpose, host
        )
        return self._step(key, lambda now: pending_rules.granted(now, wanted, now_seconds))

    def set_hold(self, key: str, host: str, hold_seconds: float) -> pending_rules.Step:
        """Hold a host for a request that waits, or hold it on."""
        now_seconds = self.now_seconds()
        hold = pending.Hold(host, now_seconds + hold_seconds)
        return self._step(key, lambda now: pending_rules.held(now, hold, now_seconds))

    def clear_hold(self, key: str, host: str) -> pending_rules.Step:
        """Hold a host no longer."""
        return self._step(key, lambda now: pending_rules.unheld(now, host))

    # -- anybody's --------------------------------------------------------------------------

    def drop_server(self, key: str, server: str) -> pending_rules.Step:
        """Take a server that its user deleted out of a request that has no hosts yet.

        One that waits for nobody any more ends.
        """
        step = self._step(key, lambda now: pending_rules.without_server(now, server))
        if isinstance(step, pending.PendingRequest) and not step.servers:
            self.end_waiting(key)
        return step

    def end_waiting(self, key: str) -> bool:
        """End a request that waits and has no server left; False where it is otherwise."""
        return self._end(
            key,
            lambda standing: (
                standing.state is pending.PendingState.WAITING and not standing.servers
            ),
        )

    def promote(self, key: str, rank: int) -> pending_rules.Step:
        """Give a request another rank."""
        return self._step(key, lambda now: pending_rules.promoted(now, rank))

    def sweep_payloads(self, older_than_seconds: float) -> int:
        """Remove payloads that no record belongs to; return how many.

        They are left where a process died between two writes. Reads all payloads, so
        it is for one process, seldom.

        :param older_than_seconds: younger ones may still get a record
        """
        before = self.now_seconds() - older_than_seconds
        removed = 0
        for page in self._synchronizer.snapshot([_PAYLOADS.name]).pages:
            old = {each.key.key: each for each in page if _written_at(each) < before}
            requests = self._synchronizer.read([record_key(key) for key in old])
            live = {name.key for name, record in requests.items() if not record.deleted}
            orphans = [
                records.Write(each.key, each.revision, deleted=True)
                for key, each in old.items()
                if key not in live
            ]
            if orphans:
                removed += sum(each.won for each in self._synchronizer.write(orphans))
        return removed

    # -- one record -------------------------------------------------------------------------

    def _lease_end(self) -> float:
        # Before the record is read: a pause in between makes the lease shorter.
        return self.now_seconds() + self.lease_seconds

    def _step(self, key: str, change: _Change) -> pending_rules.Step:
        return self._answer(self._edit(key, change))

    def _edit(
        self, key: str, change: _Change
    ) -> record_editor.Edited[pending_rules.Step] | record_editor.Unwritten:
        def propose(
            state: Mapping[str, Any] | None, _version: int
        ) -> record_editor.Proposal[pending_rules.Step]:
            standing = _request(key, state)
            step = change(standing)
            if isinstance(step, pending_rules.Superseded) or step == standing:
                return record_editor.Proposal(step)
            return record_editor.Proposal(step, _merged(state, step))

        return self._editor.edit(record_key(key), propose)

    def _answer(
        self, edited: record_editor.Edited[pending_rules.Step] | record_editor.Unwritten
    ) -> pending_rules.Step:
        return record_editor.answer_of(edited, self._synchronizer.name)

    def _end(self, key: str, is_ending: Callable[[pending.PendingRequest], bool]) -> bool:
        """End a request: say that nothing is left of it, remove its payload, then its record."""

        def close(standing: pending.PendingRequest | None) -> pending_rules.Step:
            if standing is None or not is_ending(standing):
                return pending_rules.Superseded(standing)
            # From here on whoever comes to have it ends it, too.
            return attrs.evolve(standing, servers=standing.sent)

        def remove(state: Mapping[str, Any] | None, _version: int) -> record_editor.Proposal[None]:
            standing = _request(key, state)
            is_over = standing is not None and not standing.unsent
            return record_editor.Proposal(None, deleted=is_over)

        step = self._step(key, close)
        if isinstance(step, pending_rules.Superseded) and step.standing is not None:
            return False
        for name, change in (
            (payload_key(key), _removed),
            (record_key(key), remove),
        ):
            record_editor.answer_of(self._editor.edit(name, change), self._synchronizer.name)
        return True

    def _made_good(self, if_absent: pending.PendingRequest | None) -> pending.PendingRequest | None:
        """Return a request whose record did not come; None where it came and has ended."""
        if if_absent is None or self.read_payload(if_absent.key) is None:
            return None
        return if_absent

    def _write_payload(self, request: pending.PendingRequest, payload: str) -> bool:
        """Write a payload; False where it does not stand, or may come later once more."""
        owner, at_seconds = request.grant.owner, request.asked_at
        tries: list[None] = []

        def propose(state: Mapping[str, Any] | None, _version: int) -> record_editor.Proposal[bool]:
            is_own = state is not None and state.get("owner") == owner
            if is_own or tries:
                # Another one's is of the same request, whose record decides. Nothing
                # there: ours may be on its way.
                return record_editor.Proposal(state is not None)
            tries.append(None)
            made = {"payload": payload, "owner": owner, "at": at_seconds}
            return record_editor.Proposal(answer=True, state=made)

        edited = self._editor.edit(payload_key(request.key), propose)
        return isinstance(edited, record_editor.Edited) and edited.answer


def _removed(_state: Mapping[str, Any] | None, _version: int) -> record_editor.Proposal[None]:
    return record_editor.Proposal(None, deleted=True)


def _request(key: str, state: Mapping[str, Any] | None) -> pending.PendingRequest | None:
    if state is None:
        return None
    try:
        return pending.of_state(key, state)
    except pending.MalformedPending as error:
        raise errors.UndecodableRecord(f"{record_key(key)}: {error}") from error


def _state(record: records.Record | None) -> Mapping[str, Any] | None:
    if record is None or record.deleted:
        return None
    decoded = codec.decode(record.payload)
    codec.check_readable(decoded.schema, _PENDING)
    return decoded.state


def _merged(state: Mapping[str, Any] | None, request: pending.PendingRequest) -> dict[str, Any]:
    """Return the state of a request; fields that a newer release wrote are kept."""
    written = request.to_state()
    gone = pending.OPTIONAL_FIELDS - written.keys()
    kept = {name: value for name, value in (state or {}).items() if name not in gone}
    return {**kept, **written}


def _stepped(
    name: records.RecordKey, record: records.Record | None, change: _Change
) -> tuple[pending_rules.Step | None, records.Write | None]:
    """Return what a step comes to of a record that was read, and the write that takes it.

    :returns: no step of a record that cannot be read; no write where none is needed
    """
    try:
        state = _state(record)
        standing = _request(name.key, state)
    except errors.UndecodableRecord:
        return None, None
    step = change(standing)
    if record is None or isinstance(step, pending_rules.Superseded) or step == standing:
        return step, None
    text = codec.encode(_merged(state, step), _PENDING.schema, record=str(name))
    return step, records.Write(name, record.revision, text)


def _written_at(record: records.Record) -> float:
    """Return when a payload was written; 0 where that cannot be read, so that it is looked at."""
    try:
        at_seconds = codec.decode(record.payload).state.get("at")
    except errors.UndecodableRecord:
        return 0.0
    return float(at_seconds) if isinstance(at_seconds, int | float) else 0.0
