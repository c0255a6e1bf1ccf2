# SPDX-License-Identifier: Apache-2.0
"""Verifies a written allocation where no claim could: nobody is answered on a full provider.

Placement 16 grants too much where allocations race: on a conflict it reads the
provider's generation again, and judges room by what its transaction saw before.
So who could not claim first looks afterwards: at what stands on each provider,
read in a transaction of its own once the write is committed. If it is more than
there is, the own allocation goes back, and nobody else's.

Why this is safe: whoever stays has read, after its own write, that all fits. Of
those who stay on a provider the last one to read saw all the others, for each
wrote before it read, and what stays is not taken back.

Several who took too much together would all withdraw if each did so at once:
each waits for a random moment first and looks again, then withdraws, and after
another such moment writes again. So about as many stay as fit; who withdrew in
vain does not have to leave the host to the last try of another. With other threads
of its process such a write does not race at all (:mod:`.write_turns`): what a process
leaves that dies before it looks fits beside what stood there, but for what another
process wrote at the same moment.
"""

from __future__ import annotations

import enum
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import attrs
from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception

from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    placement_replies,
    taking_back,
    write_turns,
)

LOG = logging.getLogger(__name__)

_VERSION = "1.36"

#: Writes of one allocation to one host, before the next host is tried.
_MOST_WRITES = 4
#: Looks at what is too much, before the own allocation is withdrawn.
_LOOKS = 2
#: Of a pause: a multiple of what a look took, so that looks seldom overlap.
_SPREAD = 8.0
_LEAST_PAUSE_SECONDS = 0.05
_MOST_PAUSE_SECONDS = 1.0
#: Before a second look where claims are not known: others' transactions end meanwhile.
_SECOND_LOOK_SECONDS = 0.25
#: Tries to read while Placement does not answer.
_MOST_TRIES = 5
#: Tries to withdraw then: it may be starting anew, which takes seconds.
_MOST_WITHDRAWALS = 10

#: Room for fewer further allocations like the own one is tight: two such writers
#: may have raced for it.
TIGHT_ALLOCATIONS = 4

#: What some consumers were claimed on providers and may not have yet, by provider and consumer.
ClaimedAmounts = Mapping[str, Mapping[str, Mapping[str, int]]]


#: Told of an allocation that may be left, or come yet, when its writer gives it up: of whom,
#: the uuid of the node, and what is the node's own of it. Any thread; no I/O.
TellLeft = Callable[[str, str, Mapping[str, int]], None]


def tell_nobody(consumer: str, host: str, resources: Mapping[str, int]) -> None:
    """Leave it to its claim, or its note, to tell whose it is."""


@attrs.define
class VerifiedAllocation:
    """An allocation that is written, or to be.

    :param amounts: by provider, what is taken back where it does not fit; other
        providers of the consumer are left alone
    :param capacities: by provider and class, as somebody just read them; more
        room than that is looked for before anything is withdrawn
    :param repeats: it may be written again after it was withdrawn
    :param is_alone: claims of others are not known: a tight host is looked at twice
    :param request_id: for Placement's log
    :param window: until when it is withdrawn; None before its write began
    """

    consumer: str
    amounts: placement_replies.Amounts
    capacities: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    repeats: bool = True
    is_alone: bool = False
    request_id: str | None = None
    window: taking_back.TakeBackWindow | None = None


@attrs.frozen
class Fits:
    """All that stands on the providers fits.

    :param is_tight: see :data:`TIGHT_ALLOCATIONS`
    """

    is_tight: bool = False


@attrs.frozen
class OverCapacity:
    """A provider has given more than it has."""

    provider: str
    resource_class: str
    used: int
    capacity: float


@attrs.frozen
class ChangedByOthers:
    """The allocation is another than was written: somebody changed it since."""


@attrs.frozen
class UsagesUnanswered:
    """Placement did not say whether an allocation fits."""

    text: str


Look = Fits | OverCapacity | ChangedByOthers | UsagesUnanswered

_Found = TypeVar("_Found")


class Withdrawal(enum.Enum):
    """What became of an allocation that was to go."""

    #: The consumer has nothing any more.
    GONE = "gone"
    #: It has what it had before on other providers.
    OTHERS_LEFT = "others left"
    #: Somebody changed it since: it is not ours to remove.
    NOT_OURS = "not ours"
    #: Placement does not answer: it may be left.
    UNKNOWN = "unknown"


class VerificationMeter(Protocol):
    """What counts verified allocations; none of it blocks."""

    def allocation_verified(self, result: str) -> None:
        """Count one: ``stands``, ``withdrawn``, ``not ours`` or ``unknown``."""


class NoVerificationMeter:
    """Counts nothing."""

    def allocation_verified(self, result: str) -> None:
        """Forget it."""


def _is_own_still(wanted: VerifiedAllocation) -> bool:
    return wanted.window is None or wanted.window.is_open()


def nothing_claimed() -> ClaimedAmounts:
    """Return that no consumer was claimed anything."""
    return {}


@attrs.define(eq=False, slots=False)
class AllocationVerifier:
    """Verifies allocations of one process; any thread. Blocks for HTTP.

    Raises nothing for a Placement that does not answer, but where that leaves an
    allocation behind that the next host's would be written beside.

    :param client: names Nova's ``SchedulerReportClient``
    :param turns: of all in this process that writes allocations
    :param clock: monotonic seconds
    """

    _client: Callable[[], Any]
    _turns: write_turns.WriteTurns = attrs.field(factory=write_turns.WriteTurns, kw_only=True)
    _meter: VerificationMeter = attrs.field(factory=NoVerificationMeter, kw_only=True)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _sleep: Callable[[float], None] = attrs.field(default=time.sleep, kw_only=True)
    _rng: random.Random = attrs.field(factory=random.Random, kw_only=True)

    def allocated(
        self,
        wanted: VerifiedAllocation,
        allocate: Callable[[], bool | None],
        claimed_amounts: Callable[[], ClaimedAmounts] = nothing_claimed,
    ) -> bool | None:
        """Have it written until it stands; False if the next host is to be tried.

        None in place of False where it may be written yet: what was claimed for it is
        to stand until its lease ends.

        :param allocate: writes it; False where Placement refuses, None without an answer
        :param claimed_amounts: asked before each look: what others are about to write
        :raises AllocationUpdateFailed: Nova's own: it may be left, see :meth:`take_back`
        """

        for attempt in range(1, _MOST_WRITES + 1):
            granted = self.granted(wanted, allocate)
            if not granted:
                # The first refusal is Placement's word. A later one may be of the
                # moment: who took too much with us may be about to go as well.
                if attempt == 1 or granted is None:
                    return granted
            elif self._stands_or_goes(wanted, claimed_amounts):
                return True
            elif (withdrawn := self.take_back(wanted)) is not Withdrawal.GONE and not (
                withdrawn is Withdrawal.OTHERS_LEFT and wanted.repeats
            ):
                return withdrawn is Withdrawal.NOT_OURS
            if not wanted.repeats:
                return False
            if attempt < _MOST_WRITES:
                self._pause(_MOST_PAUSE_SECONDS * attempt / _MOST_WRITES)
        return False

    def granted(
        self, wanted: VerifiedAllocation, allocate: Callable[[], bool | None]
    ) -> bool | None:
        """Have it written, unverified; False where nothing is left of it.

        None where nothing is there, but it may be written yet: no answer came. Nova
        takes that for a refusal, and the next host's would be added to it, as of a move.

        :raises AllocationUpdateFailed: Nova's own: whether it stands is not known
        """
        with self._turns.within(wanted.amounts.keys()):
            wanted.window = taking_back.TakeBackWindow.since_now(self._clock)
            answer = allocate()
        if answer:
            return True
        body = self._patiently(lambda: self._get(f"/allocations/{wanted.consumer}", wanted))
        if isinstance(body, UsagesUnanswered):
            raise _left(wanted, body.text)
        held = {name: dict(part["resources"]) for name, part in body["allocations"].items()}
        # A server that had something before is not at its first generation.
        own = {name: dict(amounts) for name, amounts in wanted.amounts.items()}
        if held and held == own and body["consumer_generation"] == 1:
            self.take_back(wanted)
            return False
        return answer

    def without_former(self, wanted: VerifiedAllocation) -> VerifiedAllocation:
        """Return it without what the server has already, which is not ours to withdraw.

        An evacuated server has its shared storage; Nova writes that again as it is.
        """
        if len(wanted.amounts) < 2:
            return wanted
        body = self._patiently(lambda: self._get(f"/allocations/{wanted.consumer}", wanted))
        if isinstance(body, UsagesUnanswered):
            return wanted
        former = body["allocations"]
        amounts = {name: part for name, part in wanted.amounts.items() if name not in former}
        return attrs.evolve(wanted, amounts=amounts)

    def take_back(self, wanted: VerifiedAllocation) -> Withdrawal:
        """Withdraw it, before another host is tried.

        :raises AllocationUpdateFailed: Nova's own: it may be left, and what would be
            written on the next host would be added to it, with nobody to end the first
        """
        withdrawn = self.withdraw(wanted)
        if withdrawn is Withdrawal.UNKNOWN:
            raise _left(wanted, "Placement does not answer")
        return withdrawn

    def _stands_or_goes(
        self, wanted: VerifiedAllocation, claimed_amounts: Callable[[], ClaimedAmounts]
    ) -> bool:
        try:
            return self.stands(wanted, claimed_amounts)
        except BaseException:
            # A green thread that is killed: nobody answers with what it wrote.
            self.withdraw(wanted)
            raise

    def stands(
        self,
        wanted: VerifiedAllocation,
        claimed_amounts: Callable[[], ClaimedAmounts] = nothing_claimed,
    ) -> bool:
        """Say whether what was written may be answered; else the caller withdraws it.

        What somebody changed since is not ours to judge, and stands.
        """
        for look in range(1, _LOOKS + 1):
            began = self._clock()
            found = self._look_patiently(wanted, claimed_amounts)
            took_seconds = self._clock() - began
            if isinstance(found, Fits) and found.is_tight and wanted.is_alone:
                self._sleep(_SECOND_LOOK_SECONDS * self._rng.uniform(0.5, 1.5))
                found = self._look_patiently(wanted, claimed_amounts)
            if isinstance(found, Fits | ChangedByOthers):
                self._count("stands" if isinstance(found, Fits) else "not ours")
                return True
            if isinstance(found, UsagesUnanswered):
                break
            if look < _LOOKS:
                self._pause(_SPREAD * took_seconds)
        self._tell(wanted, found)
        return False

    def withdraw(self, wanted: VerifiedAllocation) -> Withdrawal:
        """Take the own allocation back, at its consumer's generation, and nothing else.

        Who slept meanwhile leaves it: what stands there may be another's, and just the
        same. The rules for orphans judge it.
        """
        done = self._withdrawn_patiently(wanted)
        if done is Withdrawal.UNKNOWN:
            LOG.error(
                "The allocation of server %(server)s could not be removed; "
                "'nova-manage placement audit' finds it.",
                {"server": wanted.consumer},
            )
        self._count(
            "withdrawn" if done in (Withdrawal.GONE, Withdrawal.OTHERS_LEFT) else done.value
        )
        return done

    def _count(self, result: str) -> None:
        try:
            self._meter.allocation_verified(result)
        except Exception:
            LOG.exception("A verified allocation could not be counted.")

    # -- looking ------------------------------------------------------------------

    def _look_patiently(
        self, wanted: VerifiedAllocation, claimed_amounts: Callable[[], ClaimedAmounts]
    ) -> Look:
        # First the claims: what was kept since stands in Placement by then.
        return self._patiently(lambda: self._look(wanted, claimed_amounts()))

    def _patiently(self, ask: Callable[[], _Found | UsagesUnanswered]) -> _Found | UsagesUnanswered:
        found: _Found | UsagesUnanswered = UsagesUnanswered("not asked")
        for attempt in range(1, _MOST_TRIES + 1):
            if attempt > 1:
                self._pause(0.1 * attempt)
            try:
                found = ask()
            except (keystone.ClientException, ValueError, LookupError, TypeError) as error:
                found = UsagesUnanswered(f"{type(error).__name__}: {error}")
            if not isinstance(found, UsagesUnanswered):
                break
        return found

    def _look(self, wanted: VerifiedAllocation, claimed_amounts: ClaimedAmounts) -> Look:
        is_tight = False
        for provider, amounts in wanted.amounts.items():
            body = self._get(f"/resource_providers/{provider}/allocations", wanted)
            if isinstance(body, UsagesUnanswered):
                return body
            shown = {name: each["resources"] for name, each in body["allocations"].items()}
            own = shown.get(wanted.consumer, {})
            if any(own.get(name, 0) < amount for name, amount in amounts.items()):
                return ChangedByOthers()
            used = _used(shown, claimed_amounts.get(provider, {}), wanted.consumer)
            found = self._judged(wanted, provider, used)
            if not isinstance(found, Fits):
                return found
            is_tight |= found.is_tight
        return Fits(is_tight)

    def _judged(self, wanted: VerifiedAllocation, provider: str, used: Mapping[str, int]) -> Look:
        known = wanted.capacities.get(provider)
        if known is not None:
            found = _compared(wanted, provider, used, known)
            if isinstance(found, Fits):
                return found
        # It may have grown meanwhile.
        body = self._get(f"/resource_providers/{provider}/inventories", wanted)
        if isinstance(body, UsagesUnanswered):
            return body
        capacities = {
            name: (each["total"] - each["reserved"]) * each["allocation_ratio"]
            for name, each in body["inventories"].items()
        }
        return _compared(wanted, provider, used, capacities)

    def _get(self, url: str, wanted: VerifiedAllocation) -> dict[str, Any] | UsagesUnanswered:
        response = self._client().get(url, version=_VERSION, global_request_id=wanted.request_id)
        if response is None or response.status_code != 200:
            status = getattr(response, "status_code", None)
            return UsagesUnanswered(f"HTTP {status} for {url}")
        body: dict[str, Any] = response.json()
        return body

    # -- withdrawing ----------------------------------------------------------------

    def _withdrawn_patiently(self, wanted: VerifiedAllocation) -> Withdrawal:
        sent: list[bool] = []
        for attempt in range(1, _MOST_WITHDRAWALS + 1):
            if attempt > 1:
                self._pause(0.1 * attempt)
            if not _is_own_still(wanted):
                break
            try:
                found = self._withdraw(wanted, sent)
            except (keystone.ClientException, ValueError, LookupError, TypeError) as error:
                LOG.debug("Placement did not take it back: %(error)s", {"error": error})
                continue
            if found is not None:
                return found
        return Withdrawal.UNKNOWN

    def _withdraw(self, wanted: VerifiedAllocation, sent: list[bool]) -> Withdrawal | None:
        """Try once; None where it is to be tried again.

        :param sent: not empty once a try's answer was lost; appended to
        """
        url = f"/allocations/{wanted.consumer}"
        body = self._get(url, wanted)
        if isinstance(body, UsagesUnanswered):
            return None
        held = body["allocations"]
        if sent and held.keys().isdisjoint(wanted.amounts):
            # An earlier try was carried out.
            return Withdrawal.OTHERS_LEFT if held else Withdrawal.GONE
        for provider, amounts in wanted.amounts.items():
            if dict(held.get(provider, {}).get("resources", {})) != dict(amounts):
                return Withdrawal.NOT_OURS
        left = {
            provider: {"resources": part["resources"]}
            for provider, part in held.items()
            if provider not in wanted.amounts
        }
        payload = {
            "allocations": left,
            "project_id": body["project_id"],
            "user_id": body["user_id"],
            "consumer_generation": body["consumer_generation"],
        }
        if not _is_own_still(wanted):
            return None
        sent.append(True)
        response = self._client().put(
            url, payload, version=_VERSION, global_request_id=wanted.request_id
        )
        if response is not None and response.status_code == 204:
            return Withdrawal.OTHERS_LEFT if left else Withdrawal.GONE
        if response is not None and response.status_code == 409:
            sent.pop()
        # A conflict: whose it is, is looked at again.
        return None

    # -- pauses and words -------------------------------------------------------------

    def _pause(self, most_seconds: float) -> None:
        most = min(_MOST_PAUSE_SECONDS, max(_LEAST_PAUSE_SECONDS, most_seconds))
        self._sleep(self._rng.uniform(0.0, most))

    def _tell(self, wanted: VerifiedAllocation, found: Look) -> None:
        if isinstance(found, OverCapacity):
            LOG.warning(
                "Placement granted too much of %(class)s on provider %(provider)s, %(used)s of "
                "%(capacity)g: the allocation of server %(server)s there is withdrawn.",
                {
                    "class": found.resource_class,
                    "provider": found.provider,
                    "used": found.used,
                    "capacity": found.capacity,
                    "server": wanted.consumer,
                },
            )
        elif isinstance(found, UsagesUnanswered):
            LOG.warning(
                "Whether the allocation of server %(server)s fits is not known, and it is "
                "withdrawn: %(why)s",
                {"server": wanted.consumer, "why": found.text},
            )


def _left(wanted: VerifiedAllocation, why: str) -> nova_exception.AllocationUpdateFailed:
    error = nova_exception.AllocationUpdateFailed(
        consumer_uuid=wanted.consumer, error=f"an allocation may be left: {why}"
    )
    # No class of its own: whoever asked by RPC knows Nova's alone.
    setattr(error, _MAY_BE_LEFT, True)
    return error


_MAY_BE_LEFT = "_nodb_may_be_left"


def may_be_left(error: BaseException) -> bool:
    """Say whether an error is of an allocation that may be there, or come yet.

    Another one of Nova's says that nothing was written.
    """
    return bool(getattr(error, _MAY_BE_LEFT, False))


def _used(
    shown: Mapping[str, Mapping[str, int]],
    claimed_amounts: Mapping[str, Mapping[str, int]],
    own: str,
) -> dict[str, int]:
    """Return what is used by class: the union by consumer, see :mod:`model.claims`."""
    total: dict[str, int] = {}
    for consumer in shown.keys() | (claimed_amounts.keys() - {own}):
        has = shown.get(consumer, {})
        gets = claimed_amounts.get(consumer, {}) if consumer != own else {}
        for name in has.keys() | gets.keys():
            total[name] = total.get(name, 0) + max(has.get(name, 0), gets.get(name, 0))
    return total


def _compared(
    wanted: VerifiedAllocation,
    provider: str,
    used: Mapping[str, int],
    capacities: Mapping[str, float],
) -> Look:
    is_tight = False
    for name, amount in wanted.amounts[provider].items():
        capacity = capacities.get(name, 0)
        # A ratio that is no number makes none of it; nothing is greater than that.
        if not used.get(name, 0) <= capacity:
            return OverCapacity(provider, name, used.get(name, 0), capacity)
        is_tight |= capacity - used.get(name, 0) < TIGHT_ALLOCATIONS * amount
    return Fits(is_tight)


def is_tight(amounts: Mapping[str, int], left: Mapping[str, int]) -> bool:
    """Say whether what is left after an allocation is tight, by what its writer knows."""
    return any(left.get(name, 0) < TIGHT_ALLOCATIONS * amount for name, amount in amounts.items())
