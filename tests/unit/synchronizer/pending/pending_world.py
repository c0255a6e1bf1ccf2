# SPDX-License-Identifier: Apache-2.0
"""Conductors, schedulers and users around one ledger, each of whom may sleep or die at any step.

Cells have no fence of their own here: whatever a record does not call sent is built by
whoever has the request, so that the ledger alone keeps a server from being sent twice.
"""

from __future__ import annotations

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.pending import made_requests

State = pending.PendingState
LEASE = made_requests.LEASE_SECONDS


class WatchedHub(memory.MemoryHub):
    """Tells what each write of a request's record made of what."""

    def __init__(self, **parameters):
        self.seen = lambda key, before, after: None
        super().__init__(**parameters)

    def _commit(self, write):
        before = self._held.get(write.key)
        after = super()._commit(write)
        if write.key.namespace == known_namespaces.PENDING.name:
            self.seen(write.key.key, request_of(before), request_of(after))
        return after


def request_of(record):
    if record is None or record.deleted:
        return None
    return pending.of_state(record.key.key, codec.decode(record.payload).state)


class Client(memory.MemorySynchronizer):
    """Lets others do something between a read and the write that follows it."""

    def __init__(self, hub):
        super().__init__(shared_hub=hub)
        self.meanwhile = []
        self.open()

    def write(self, writes):
        meanwhile, self.meanwhile = self.meanwhile, []
        for others in meanwhile:
            others()
        return super().write(writes)


@attrs.define
class Hand:
    """One conductor's work on one request: what is left of it, and whether it runs now."""

    steps: object
    running: bool = False


class World:
    """Everything that is, with a plain account of what must hold."""

    def __init__(self):
        self.now = 1000.0
        self.hub = WatchedHub(clock=lambda: self.now)
        self.hub.seen = self.check_write
        self.clients = [Client(self.hub) for _ in range(5)]
        self.ledgers = [
            pending_ledger.PendingLedger(client, LEASE, pause=lambda _: None)
            for client in self.clients
        ]
        self.has_room = False
        self.requests = {}
        self.acknowledged = set()
        self.casts = {}
        self.deleted = set()
        self.failed = set()
        self.hands = []
        self.messages = []
        self.names = 0
        self.seen = {}
        #: Servers that a record called sent: whoever dies before it does it leaves them so.
        self.marked = set()
        #: Records that were there once and are gone.
        self.ended = set()
        #: Messages that computes have not come to; where servers stand; and how often a compute
        #: gave one up before it began. What has no record is not looked for by anybody.
        self.under_way = []
        self.hosted = set()
        self.given_up = {}
        self.lying_about = set()
        self.unkept = set()
        #: Servers whose last message is on its way, or was.
        self.posted = set()
        #: Half an hour has passed: what has not arrived by now ends in ERROR.
        self.is_late = False

    def count(self, what):
        self.seen[what] = self.seen.get(what, 0) + 1

    def name(self, kind):
        self.names += 1
        return f"{kind}-{self.names}"

    # -- what must hold of each write --------------------------------------------------

    def check_write(self, key, before, after):
        if after is None:
            assert before is None or not before.unsent, before
            self.ended.add(key)
            return
        self.marked.update(after.sent)
        taken_back = set() if before is None else set(before.sent) - set(after.sent)
        self.posted -= taken_back
        # What has ended is in doubt no more.
        certain = set(after.sent_for_certain) - self.failed - self.deleted
        assert certain <= self.posted, (before, after)
        if before is not None and before.servers and not after.servers:
            arrived = before.placed_at and set(before.servers) <= self.hosted
            assert arrived or not before.sent, (before, after)
            return
        if before is None:
            assert after.grant.attempt == 1, after
            if key in self.ended:
                self.count("records that came back")
            return
        old, new = before.grant, after.grant
        assert taken_back <= self.lying_about, (before, after)
        forgotten = set(before.sent_for_certain) - set(after.sent_for_certain)
        assert forgotten <= taken_back, (before, after)
        assert set(after.servers) <= set(before.servers), (before, after)
        if new.attempt != old.attempt:
            assert new.attempt == old.attempt + 1, (before, after)
            assert after.state is State.GRANTED, after
            assert before.state is State.WAITING or old.until_seconds <= self.now, before
            return
        if new.owner != old.owner:
            assert (before.state, after.state) == (State.GRANTED, State.SCHEDULING), (before, after)
            return
        moves = {
            State.SCHEDULING: {State.SCHEDULING, State.WAITING, State.BUILDING},
            State.BUILDING: {State.BUILDING},
            State.WAITING: {State.WAITING},
            State.GRANTED: {State.GRANTED},
        }
        assert after.state in moves[before.state], (before, after)
        if set(after.sent) - set(before.sent):
            assert before.state is State.BUILDING, before
        if after.placed_at:
            assert not after.unsent, after

    # -- conductors ------------------------------------------------------------------------

    def submit(self, number, servers):
        """A user asks for servers; a conductor takes the request."""
        names = tuple(self.name("server") for _ in range(servers))
        owner = self.name("conductor")
        request = made_requests.newcomer(names[0], names, owner, self.now)
        self.requests[request.key] = request
        self.casts.update(dict.fromkeys(names, 0))
        self.hands.append(Hand(self.newcomer(self.ledgers[number], request)))

    def newcomer(self, ledger, request):
        try:
            created = ledger.create(request, "payload")
        except errors.BackendUnavailable:
            # It goes on as in Nova, which the ledger knows nothing of.
            self.count("not kept")
            self.unkept.update(request.servers)
            for server in request.servers:
                self.cast(server)
            return
        if isinstance(created, pending_rules.Superseded):
            raise AssertionError(created)
        doubtful = None
        if isinstance(created, pending_ledger.MaybeCreated):
            self.count("creations in doubt")
            doubtful = request
        else:
            self.acknowledged.add(request.key)
        yield
        yield from self.place(ledger, request, pending_rules.holding_of(request), doubtful)

    def deliver(self, number, key, attempt):
        """A cast of a scheduler reaches a conductor."""
        owner = self.name("conductor")
        self.hands.append(Hand(self.dispatched(self.ledgers[number], key, attempt, owner)))

    def dispatched(self, ledger, key, attempt, owner):
        taken = yield from self.insist(lambda: ledger.take(key, attempt, owner))
        if isinstance(taken, pending_rules.Superseded):
            self.count("casts in vain")
            return
        yield
        holding = pending_rules.holding_of(taken)
        payload = yield from self.insist(lambda: ledger.read_payload(key))
        yield
        lost = [each for each in taken.sent if each in self.lying_about - self.deleted]
        for server in lost:
            self.count("given up")
            step = yield from self.insist(lambda each=server: ledger.give_up(holding, each))
            if isinstance(step, pending_rules.Superseded):
                self.count("overtaken before it sent again")
                return
            taken = step
            yield
        if payload is None or taken.grant.purpose is not pending.Purpose.PLACE:
            standing = yield from self.insist(lambda: ledger.read(key))
            if not holding.is_of(standing):
                self.count("overtaken before it failed any")
                return
            assert payload is not None or not lost, taken
            self.count("without a payload" if payload is None else "expired")
            self.failed.update(taken.unsent)
            yield from self.end(ledger, holding, taken)
            return
        if not taken.unsent:
            yield from self.end(ledger, holding, taken)
            return
        if taken.grant.after is not State.WAITING:
            self.count(f"taken over in {taken.grant.after.value}")
        yield from self.place(ledger, taken, holding, None)

    def place(self, ledger, request, holding, doubtful):
        if not self.has_room:
            step = yield from self.insist(
                lambda: ledger.park(holding, "no room", 1.0, if_absent=doubtful)
            )
            self.count("parked" if isinstance(step, pending.PendingRequest) else "overtaken")
            self.acknowledged.add(request.key)
            return
        kept = [server for server in request.mapped if server in request.unsent]
        step = yield from self.insist(lambda: ledger.begin(holding, if_absent=doubtful, kept=kept))
        if isinstance(step, pending_rules.Superseded):
            self.count("overtaken")
            return
        self.acknowledged.add(request.key)
        for server in request.unsent:
            yield
            if server in self.deleted | self.failed:
                continue
            # Whoever looks finds that its task has a state again: it is not given up any more.
            self.lying_about.discard(server)
            step = yield from self.insist_sent(ledger, holding, server)
            if isinstance(step, pending_rules.Superseded):
                self.count("overtaken while building")
                return
            yield
            self.cast(server)
        yield
        yield from self.end(ledger, holding, request)

    def end(self, ledger, holding, request):
        """Let go of what was sent and is not seen on its host; end anything else.

        :param request: as it was taken, or given up
        """
        sent = [each for each in request.servers if self.casts[each] or each in request.sent]
        arrived = self.hosted | self.failed | self.deleted
        uncertain = set(request.sent) - {*request.sent_for_certain, *arrived}
        if self.is_late:
            # Or one that was overtaken made it look as if it were on its way.
            stray = set(sent) - arrived - self.lying_about - set(self.under_way)
            self.failed |= uncertain | stray
            uncertain = set()
        if self.hosted.union(self.failed, self.deleted).issuperset(sent):
            yield from self.insist(lambda: ledger.finish(holding))
            self.count("finished")
        elif uncertain:
            yield from self.insist(lambda: ledger.rest(holding, LEASE, uncertain))
            self.count("left in doubt")
        else:
            yield from self.insist(lambda: ledger.place(holding, LEASE))
            self.count("let go")

    def insist(self, call):
        """Make a call until the back end answers, others coming between."""
        while True:
            try:
                return call()
            except errors.BackendUnavailable:
                self.count("away")
                yield

    def insist_sent(self, ledger, holding, server):
        again = False
        while True:
            try:
                return ledger.sent(holding, server, again=again)
            except errors.BackendUnavailable:
                again = True
                yield

    def cast(self, server):
        self.casts[server] += 1
        self.posted.add(server)
        given_up = self.given_up.get(server, 0)
        assert self.casts[server] <= 1 + given_up, f"{server} was sent twice"
        self.under_way.append(server)

    def arrive_at_compute(self, which, *, gives_up):
        """Let a compute come to a message."""
        if not self.under_way:
            return
        server = self.under_way.pop(which % len(self.under_way))
        if gives_up and server not in self.unkept:
            self.given_up[server] = self.given_up.get(server, 0) + 1
            self.lying_about.add(server)
        else:
            assert server not in self.hosted, f"{server} was built twice"
            self.hosted.add(server)

    def advance(self, hand):
        """Let a conductor take its next step; True where it has none left."""
        if hand.running:
            return False
        hand.running = True
        try:
            next(hand.steps)
        except StopIteration:
            if hand in self.hands:
                self.hands.remove(hand)
            return True
        finally:
            hand.running = False
        return False

    # -- schedulers --------------------------------------------------------------------------

    def grant(self, number, key, purpose=pending.Purpose.PLACE):
        ledger = self.ledgers[number]
        try:
            seen = ledger.read(key)
            if seen is None:
                return
            waits = seen.state is State.WAITING
            if not waits and not pending_rules.is_lapsed(seen, self.now):
                return
            granted = ledger.grant(key, seen.grant.attempt, f"scheduler-{number}", purpose)
        except errors.BackendUnavailable:
            self.count("away")
            return
        if isinstance(granted, pending.PendingRequest):
            self.messages.append((key, granted.grant.attempt))
        else:
            self.count("lost to another scheduler")

    def see(self, number, key):
        """Let a scheduler see servers on their hosts."""
        ledger = self.ledgers[number]
        try:
            seen = ledger.read(key)
            if seen is not None and set(seen.servers) <= self.hosted:
                ledger.arrive([key])
                self.count("seen on hosts")
        except errors.BackendUnavailable:
            self.count("away")

    # -- users -------------------------------------------------------------------------------

    def delete(self, number, server):
        if self.casts[server]:
            return
        key = next(each.key for each in self.requests.values() if server in each.servers)
        self.deleted.add(server)
        try:
            self.ledgers[number].drop_server(key, server)
        except errors.BackendUnavailable:
            self.count("away")

    # -- the end -------------------------------------------------------------------------------

    def settle(self):
        """Let others end what is left, then everybody who slept wake up, then others again."""
        for client in self.clients:
            client.meanwhile.clear()
            while client.faults.take("write") or client.faults.take("read"):
                pass
        self.hub.deliver_late()
        self.has_room = self.is_late = True
        sleeping, self.hands = self.hands, []
        self.recover()
        for hand in sleeping:
            while not self.advance(hand):
                pass
        self.recover()

    def recover(self):
        for _ in range(6):
            while self.under_way:
                self.arrive_at_compute(0, gives_up=False)
            self.now += LEASE
            self.messages.clear()
            for key in self.requests:
                self.grant(3, key)
            for key, attempt in self.messages:
                self.deliver(4, key, attempt)
            while self.hands:
                self.advance(self.hands[0])

    def check_ends(self):
        for key, request in self.requests.items():
            standing = self.ledgers[4].read(key)
            assert standing is None, standing
            if key not in self.acknowledged:
                continue
            assert self.ledgers[4].read_payload(key) is None, key
            for server in request.servers:
                lies_about = self.lying_about - self.failed - self.deleted
                assert server not in lies_about, f"{server} lies about"
                ends = self.casts[server] or server in self.deleted | self.failed
                assert ends or server in self.marked, f"{server} was lost"
