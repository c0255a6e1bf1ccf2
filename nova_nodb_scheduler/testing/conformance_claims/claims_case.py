# SPDX-License-Identifier: Apache-2.0
"""What all cases of the claims protocol share: schedulers, faults, assertions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.testing.conformance import contract_case

CAPACITY = {"VCPU": 4}
#: A lease that ends within a test, and one that does not.
SHORT_SECONDS = 5.0
LONG_SECONDS = 600.0
#: How far two clients may read an engine's clock apart: memcached's has steps.
CLOCK_STEP_SECONDS = 1.0
CLAIMERS = 6


class Crashed(BaseException):
    """The scheduler died here; nothing in it may catch this."""


def fits(claim: model.Claim, record: model.ClaimRecord) -> bool:
    """Say whether a claim fits into CAPACITY beside a record's claims."""
    used = record.used({})
    return all(
        used.get(name, 0) + amount <= CAPACITY[name] for name, amount in claim.resources.items()
    )


def claim(consumer: str, host: str, vcpus: int = 1) -> model.Claim:
    return model.Claim(consumer, host, {"VCPU": vcpus})


def state_of(number: int, _state: publisher.State | None) -> publisher.State:
    """Compute some state of a compute node."""
    return {"row": {"vcpus_used": number}}


def lose_replies(client: contract.Synchronizer, count: int, *, carried_out: bool) -> None:
    """Let the next writes of a client end unknown, carried out or not."""
    write = client.write
    left = [count]

    def unreliable(writes: Sequence[records.Write]) -> list[records.WriteResult]:
        if left[0] <= 0:
            return write(writes)
        left[0] -= 1
        if carried_out:
            write(writes)
        return [records.WriteResult(records.Verdict.UNKNOWN) for _ in writes]

    client.write = unreliable  # type: ignore[method-assign]


def cut_off(client: contract.Synchronizer) -> None:
    """Let the next write end unknown, and every read after it fail."""
    lose_replies(client, 1, carried_out=True)
    write = client.write

    def last(writes: Sequence[records.Write]) -> list[records.WriteResult]:
        results = write(writes)

        def unreachable(keys: object) -> None:
            raise errors.BackendUnavailable(client.name, "cut off by the test")

        client.read = unreachable  # type: ignore[assignment, method-assign]
        return results

    client.write = last  # type: ignore[method-assign]


class ClaimingScheduler:
    """One scheduler: a client that claims, which may be told to crash."""

    def __init__(
        self,
        client: contract.Synchronizer,
        writer: str = "scheduler",
        lease_seconds: float = LONG_SECONDS,
        crash_after: str | None = None,
        claimable: Callable[[str], bool] = lambda host: True,
    ) -> None:
        self.client = client
        #: Seconds that this scheduler believes the back end's clock to be
        #: further: lets leases end without a wait.
        self.ahead_seconds = 0.0
        self._crash_after = crash_after
        self.batches = ledger_claimer.ClaimBatches(
            client,
            writer,
            lambda: str(uuid.uuid4()),
            lease_seconds,
            claimable,
            now_seconds=self._now_seconds,
            after_step=self._after_step,
        )
        self.hosts = single_claims.HostClaimsOneByOne(client, self.batches, self._now_seconds)
        self.groups = single_claims.GroupClaimsOneByOne(client, self.batches, self._now_seconds)

    def claim(self, wanted: model.Claim) -> single_claims.ClaimAnswer:
        return self.hosts.claim(wanted, lambda record: fits(wanted, record), self.client.head())

    def claim_each(self, wanted: Sequence[model.Claim]) -> dict[str, ledger_claimer.Answer]:
        return self.batches.take(wanted, ledger_claimer.ClaimView(self.client.head(), fits))

    def join(
        self, group: group_model.ServerGroup, wanted: model.Claim
    ) -> (
        group_model.GroupGranted
        | model.GrantRefused
        | single_claims.GrantLost
        | single_claims.GrantUnknown
    ):
        return self.groups.claim(
            group, wanted, lambda record: fits(wanted, record), self.client.head(), {}
        )

    def _now_seconds(self) -> float:
        return self.client.now_seconds() + self.ahead_seconds

    def _after_step(self, step: str) -> None:
        if step == self._crash_after:
            raise Crashed(step)


class ClaimsCase(contract_case.Case):
    """What the parts below share."""

    def scheduler(
        self,
        writer: str = "scheduler",
        lease_seconds: float = LONG_SECONDS,
        crash_after: str | None = None,
    ) -> ClaimingScheduler:
        return ClaimingScheduler(self.client(), writer, lease_seconds, crash_after)

    def granted(self, answer: object) -> model.Granted:
        self.assertIsInstance(answer, model.Granted)
        assert isinstance(answer, model.Granted)
        return answer

    def joined(self, answer: object) -> group_model.GroupGranted:
        self.assertIsInstance(answer, group_model.GroupGranted)
        assert isinstance(answer, group_model.GroupGranted)
        return answer

    def refused(self, answer: object, reason: model.RefusalReason) -> None:
        self.assertIsInstance(answer, model.GrantRefused)
        assert isinstance(answer, model.GrantRefused)
        self.assertIs(reason, answer.reason)

    def consumers(self, scheduler: ClaimingScheduler, host: str) -> set[str]:
        return set(scheduler.hosts.read(host).claims)

    def publication(self, client: contract.Synchronizer) -> records.Cursor:
        """Write what the authority would; returns its epoch and version."""
        key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, str(uuid.uuid4()))
        written = self.win(client, records.Write(key, 0, b"payload"))
        return records.Cursor(client.head().epoch, written.version)

    def wait_out(self, client: contract.Synchronizer, seconds: float) -> None:
        """Wait by the back end's clock."""
        end = client.now_seconds() + seconds + CLOCK_STEP_SECONDS
        self.eventually(lambda: client.now_seconds() > end, "the back end's clock goes on")
