"""What the meter and the ledger say to each other.

Rules this module keeps:

* The meter decides in process, by what it knows. The ledger writes down what became of it, later.
  Neither waits for the other.
* A balance is what the ledger last said, less what this process has settled since, plus what moved.
  So whatever changes a balance is told as a difference: it holds in whatever order it arrives, and
  beside settlements that the ledger has not written yet.
* ``tenant`` is always who pays: an untrusted name pays as the default tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from extproc.core.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a hold: what one exchange is charged.

    Attributes:
        id: the exchange's, unique for ever: the same one is charged once, however often it arrives.
        tenant: who pays.
        plan: the name of the tenant's plan.
        outcome: how the exchange ended.
        tokens: charged; 0 where the outcome charges nothing.
        estimated: the engine reported no usage; ``tokens`` is our estimate.
        at: Unix time of the end, in seconds; the charge belongs to the period that this lies in.
    """

    id: str
    tenant: str
    plan: str
    outcome: Outcome
    tokens: int
    estimated: bool
    at: float


@dataclass(frozen=True, slots=True)
class Hold:
    """What an admitted exchange may come to cost, written down while it runs.

    A process that dies leaves it behind; it is released when its outbox is opened again.

    Attributes:
        id: the exchange's.
        tenant, plan: as in its settlement.
        tokens: held.
        at: Unix time of the admission, in seconds.
    """

    id: str
    tenant: str
    plan: str
    tokens: int
    at: float


@dataclass(frozen=True, slots=True)
class Movement:
    """A change of a balance that is no settlement of this process.

    Grants, adjustments, compensation, a new period, a plan that changed, and what other Tidegates
    have charged.

    Attributes:
        id: of the ledger's transaction, unique for ever: several Tidegates hear of the same one.
        tenant: whose balance.
        tokens: added to what remains; under 0 it takes away.
        settled: another Tidegate has charged it.
    """

    id: str
    tenant: str
    tokens: int
    settled: bool = False


class Outbox(Protocol):
    """Takes holds and settlements over on their way to the ledger."""

    def put(self, record: Hold | Settlement) -> None:
        """Take one over; returns at once and never raises. It outlives the process.

        A settlement without a hold is as good; a hold must not come after its settlement.
        """
        ...


class Accounts(Protocol):
    """Hears from the ledger what remains; the meter implements it. Called in the event loop."""

    def opened(self, remaining: Mapping[str, int]) -> None:
        """The ledger can be read: tokens that remain, by tenant.

        Tenants that are not in it have the whole quota of their plan. What earlier processes left in
        the outbox is counted in it; what this one has settled, or what `moved` has told, is not: that
        counts on top. Said once, at the start if the ledger is there, else when it is.
        """
        ...

    def moved(self, movement: Movement) -> None:
        """A balance has changed."""
        ...
