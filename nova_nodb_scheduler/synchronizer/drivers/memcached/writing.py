# SPDX-License-Identifier: Apache-2.0
"""The write protocol: cas tokens, then versions, then log slots, then records.

The naive way takes a version and writes the record whenever it comes round to
it: a reader that has passed that version never learns of it (62-75 of 4,000
records after crashes). Here the token is read BEFORE the version is taken, so
a reader that cannot wait any longer changes the token (``following``), and the
slow writer's compare-and-set fails; it reads again and takes a new version.

A creation has no token to fence, so a placeholder is laid down first.

A writer that is refused leaves its log slot as it is. The naive way, to void it so
that no reader waits for it, erases the slot under a reader that has fenced the
record to that very version: another reader, further behind, then meets the record's
change nowhere. The writer makes its version stable as readers do instead, by a fence.

A compare-and-set knows nothing of epochs, and an epoch that ended may stand as it was,
for who began the next may have died before it was swept. The naive way, to look at the
epoch with the tokens, has a writer that stood still since then win in it what another
was granted in the next. So the epoch is looked at behind the records, in the exchange that
carries them: who finds it in force there was in time, whatever ends it later. Who does not
cannot say whether others read what was written before the end, so the outcome is unknown.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.memcached import clock as clock_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import index as index_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout, options, steps
from nova_nodb_scheduler.synchronizer.drivers.support import batches, record_names

#: A deletion that took longer than this announces itself again, because its
#: first announcement may have been taken for one that was given up.
ANNOUNCEMENT_VALID_SECONDS = 30.0


@attrs.define
class _Call(batches.PendingBatch):
    """One batch, and what is known so far of each of its writes."""

    #: Names that this call put on the index, by epoch.
    indexed: set[tuple[str, bytes]] = attrs.field(factory=set)
    #: Versions taken for records that refused them, the last of each, by epoch and name.
    refused: dict[tuple[str, bytes], int] = attrs.field(factory=dict)


@attrs.frozen
class _Ready:
    """A write that fits, with all it needs to be carried out."""

    number: int
    write: records.Write
    name: bytes
    token: bytes


@attrs.define(eq=False)
class Writer:
    """Carries out compare-and-sets; any thread may call."""

    _settings: options.MemcachedOptions
    _connection: connection_module.Connection
    _clock: clock_module.ServerClock
    _epochs: epochs_module.Epochs
    _index: index_module.Index
    _at: steps.Observer
    #: How often a write had to be repeated, for statistics.
    repeats: int = attrs.field(init=False, default=0)

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out a batch in rounds, until every write has its result; see the contract."""
        call = _Call(writes)
        deadline = time.monotonic() + self._settings.timeout_seconds
        try:
            while todo := call.todo:
                self._round(call, todo)
                if call.todo and time.monotonic() > deadline:
                    raise self._connection.unavailable(
                        f"{len(call.todo)} records could not be written in time"
                    )
        except errors.BackendUnavailable as error:
            call.break_off(error)
        except epochs_module.EpochBroken as error:
            call.break_off(self._connection.unavailable(f"{error} was evicted"))
        self._at(steps.Step.DONE)
        return call.answers()

    def _round(self, call: _Call, todo: Sequence[int]) -> None:
        names = {number: record_names.encode(call.writes[number].key) for number in todo}
        self._at(steps.Step.READ)
        epoch, _version, found = self._epochs.across(
            lambda: self._epochs.gets_beside_counter(
                lambda epoch: [epoch.record_key(name) for name in names.values()]
            )
        )
        ready: list[_Ready] = []
        missing: list[int] = []
        placeholders: list[int] = []
        collected: list[int] = []
        fences: dict[bytes, tuple[bytes, bytes]] = {}
        for number in todo:
            name, write = names[number], call.writes[number]
            held = found.get(epoch.record_key(name))
            item = layout.Item.decode(held[0]) if held else None
            record = item.record if item else None
            if item is None:
                missing.append(number)
            elif not write.wins(record):
                call.results[number] = records.WriteResult(records.Verdict.LOST, record)
                assert held is not None
                if item.version < call.refused.get((epoch.name, name), 0):
                    fences[name] = held
            elif item.kind is layout.Kind.COLLECTED:
                collected.append(number)
            elif item.kind is layout.Kind.PLACEHOLDER and (epoch.name, name) not in call.indexed:
                placeholders.append(number)
            else:
                assert held is not None
                ready.append(_Ready(number, write, name, held[1]))
        if fences:
            self._fence_own(call, epoch, fences)
        if missing:
            placeholders += self._lay_placeholders(call, epoch, missing, names)
        if collected:
            self._index.remove_collected(epoch, {names[number] for number in collected})
        if placeholders:
            self._enter_in_index(call, epoch, {names[number] for number in placeholders})
        if ready:
            self._commit(call, epoch, ready)

    def _lay_placeholders(
        self, call: _Call, epoch: layout.Epoch, missing: Sequence[int], names: dict[int, bytes]
    ) -> list[int]:
        """Lay down placeholders for records to be created; returns their numbers."""
        absent = self._index.absent(epoch, {names[number] for number in missing})
        doubtful = {names[number] for number in missing} - absent
        if doubtful:
            self._index.check_not_evicted(epoch, doubtful)
        created = []
        for number in missing:
            if call.writes[number].expected_revision:
                call.results[number] = records.WriteResult(records.Verdict.LOST, None)
            else:
                created.append(number)
        self._at(steps.Step.PLACEHOLDER)
        now = self._clock.now_seconds()
        self._connection.send_all(
            [
                connection_module.store(
                    b"add",
                    epoch.record_key(names[number]),
                    layout.Item(
                        call.writes[number].key, layout.Kind.PLACEHOLDER, 0, 0, now
                    ).encode(),
                )
                for number in created
            ]
        )
        return created

    def _enter_in_index(self, call: _Call, epoch: layout.Epoch, names: set[bytes]) -> None:
        call.indexed.update((epoch.name, name) for name in self._index.add(epoch, names))

    def _commit(self, call: _Call, epoch: layout.Epoch, ready: Sequence[_Ready]) -> None:
        began = time.monotonic()
        deleted = [each.name for each in ready if each.write.deleted]
        if deleted:
            self._at(steps.Step.ANNOUNCE)
            self._announce_deletions(epoch, deleted)
        self._at(steps.Step.SEQUENCE)
        last = self._connection.increment(epoch.sequence_key, len(ready))
        if last is None:
            raise self._epochs.broken(epoch, "the counter of versions")
        self._epochs.note_version(epoch, last)
        first = last - len(ready) + 1
        placed = self._take_slots(epoch, dict(enumerate(ready, first)))
        self._set_records(call, epoch, placed)
        if deleted and time.monotonic() - began > ANNOUNCEMENT_VALID_SECONDS:
            self._announce_deletions(epoch, deleted)

    def _announce_deletions(self, epoch: layout.Epoch, names: Sequence[bytes]) -> None:
        """Tell the collector where tombstones will be; before they are, so none is lost."""
        now = self._clock.now_seconds()
        lines = self._connection.send_all(
            [
                connection_module.store(
                    b"append", epoch.deletion_log_key(name), layout.encode_deletion(name, now)
                )
                for name in names
            ]
        )
        pages = {
            epoch.deletion_log_key(name)
            for name, line in zip(names, lines, strict=True)
            if line != b"STORED"
        }
        if pages:
            # A full server answers so, too: it found no memory for a longer page.
            if len(self._connection.get(list(pages))) < len(pages):
                raise self._epochs.broken(epoch, "a page of the deletion log")
            raise self._connection.out_of_memory()

    def _take_slots(self, epoch: layout.Epoch, wanted: dict[int, _Ready]) -> dict[int, _Ready]:
        """Add the log slots; those that a reader has voided must take new versions."""
        self._at(steps.Step.SLOT)
        lines = self._connection.send_all(
            [
                connection_module.store(
                    b"add",
                    epoch.slot_key(version),
                    each.name,
                    ttl_seconds=self._settings.log_ttl_seconds,
                )
                for version, each in wanted.items()
            ]
        )
        answered = zip(wanted.items(), lines, strict=True)
        return {version: each for (version, each), line in answered if line == b"STORED"}

    def _set_records(self, call: _Call, epoch: layout.Epoch, placed: dict[int, _Ready]) -> None:
        if not placed:
            return
        now = self._clock.now_seconds()
        items = {version: _item(epoch, version, each, now) for version, each in placed.items()}
        self._at(steps.Step.RECORD)
        replies = self._connection.send(
            [
                connection_module.store(
                    b"cas",
                    epoch.record_key(each.name),
                    items[version].encode(),
                    token=each.token,
                )
                for version, each in placed.items()
            ],
            look_at=self._epochs.key,
        )
        is_in_force = self._epochs.is_in_force(epoch, replies.found)
        refused: dict[bytes, int] = {}
        refusal = b""
        for place, (version, each) in enumerate(placed.items()):
            if place >= len(replies.lines):
                call.results[each.number] = batches.UNKNOWN
                continue
            line = replies.lines[place]
            if line == b"STORED":
                call.results[each.number] = (
                    records.WriteResult(records.Verdict.WON, items[version].record, epoch.name)
                    if is_in_force
                    else batches.UNKNOWN
                )
                continue
            refused[each.name] = version
            if b"ERROR" in line:
                refusal = line
        if refused:
            self.repeats += len(refused)
            self._at(steps.Step.GIVE_UP)
            call.refused.update({(epoch.name, name): each for name, each in refused.items()})
        if refusal:
            with contextlib.suppress(errors.BackendUnavailable):
                self._fence_refused(call, epoch, refused)
            raise self._connection.unavailable(refusal.decode(errors="replace"))

    def _fence_refused(
        self, call: _Call, epoch: layout.Epoch, refused: Mapping[bytes, int]
    ) -> None:
        """Make stable what a full server refused: nobody writes it in this call any more."""
        held = self._connection.gets([epoch.record_key(name) for name in refused])
        self._fence_own(
            call,
            epoch,
            {
                name: held[epoch.record_key(name)]
                for name in refused
                if epoch.record_key(name) in held
            },
        )

    def _fence_own(
        self, call: _Call, epoch: layout.Epoch, held: Mapping[bytes, tuple[bytes, bytes]]
    ) -> None:
        """Raise records to versions of our own that they refused, as a slow reader would.

        Who fails in this costs the readers their wait and nothing more; a record
        that changes meanwhile has a later version, nearly always.

        :param held: items and cas tokens, by name
        """
        commands = []
        for name, (value, token) in held.items():
            item = layout.Item.decode(value)
            version = call.refused[epoch.name, name]
            if item.version < version and item.kind is not layout.Kind.COLLECTED:
                fenced = attrs.evolve(item, version=version).encode()
                commands.append(
                    connection_module.store(b"cas", epoch.record_key(name), fenced, token=token)
                )
        with contextlib.suppress(errors.BackendUnavailable):
            self._connection.send(commands)


def _item(epoch: layout.Epoch, version: int, each: _Ready, now_seconds: float) -> layout.Item:
    deleted = each.write.deleted
    return layout.Item(
        each.write.key,
        layout.Kind.TOMBSTONE if deleted else layout.Kind.LIVE,
        version,
        epoch.revision_base + version,
        now_seconds,
        b"" if deleted else each.write.payload,
    )
