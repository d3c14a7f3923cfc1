"""What the tests of quotas share: calls of payers, and a meter whose outbox a test reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, Payer, ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.limits import Plan, Rate
from extproc.core.metering import Taking
from extproc.core.outcomes import End, Outcome
from extproc.quota.meter import LocalMeter
from extproc.quota.ports import Hold, Settlement

CLASS = ServiceClass("P1", 0)
T0 = 1_000.0


@dataclass
class Desk:
    """A meter before which calls of payers come; ``now`` is the test's."""

    now: float = T0
    written: list[Hold | Settlement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = Pool("qwen", PoolLimits(100, stale_after=1.0, unknown_after=30.0), (CLASS,))
        self.meter = LocalMeter(self, lambda: self.now + 1e9)

    def put(self, record: Hold | Settlement) -> None:
        self.written.append(record)

    @staticmethod
    def call(
        ident: str,
        plan: Plan | None,
        *,
        account: str = "a",
        prompt: int = 10,
        output: int | None = 90,
        choices: int = 1,
    ) -> Candidate:
        payer = None if plan is None else Payer(account, plan)
        who = Classification(account, "", CLASS, output, None, (), None, None, payer=payer)
        return Candidate(ident, who, prompt, body_bytes=100, max_output=output, choices=choices)

    def take(self, call: Candidate) -> Taking | Refusal:
        return self.meter.take(call, self.pool, self.now, _never)

    def settle(
        self,
        ident: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        prompt: int | None = None,
        output: int | None = None,
        generated: float = 0.0,
    ) -> None:
        self.meter.settle(ident, End(outcome, prompt, output), generated, self.now)

    @staticmethod
    def plan(requests: int = 60, tokens: int = 6000, quota: int | None = None) -> Plan:
        return Plan("free", Rate(requests), Rate(tokens), quota)


def _never(_refusal: Refusal | None) -> None:
    raise AssertionError("a local meter answers at once")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(scope="session")
def new_desk() -> type[Desk]:
    return Desk
