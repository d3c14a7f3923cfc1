"""What admission asks of whoever counts what tenants spend.

Rules this module keeps:

* A call is looked at when it comes and pays when it goes. Between the two it owes nothing, so a call
  that is refused for any other reason has nothing to be given back.
* What `Meter.take` has taken is ended once: by `Meter.settle` where the call was let in, by
  `Meter.give_back` where it was not after all.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from extproc.core.capacity import Pool
from extproc.core.classes import Payer
from extproc.core.controller import Candidate, Refusal
from extproc.core.limits import Level
from extproc.core.outcomes import End


class Taking(Enum):
    """How far a taking has come."""

    DONE = "done"
    ASKED = "asked"
    """Somebody else has the word; he will be heard soon."""


Answered = Callable[[Refusal | None], None]
"""Is told why a call may not go after all, or None."""


class Meter(Protocol):
    """Counts what tenants spend. ``now`` is seconds on the clock of all others."""

    def take(self, call: Candidate, pool: Pool, now: float, answered: Answered) -> Taking | Refusal:
        """Take what a call of a payer's costs at most, or nothing and say why not.

        Where it is `Taking.ASKED`, ``answered`` is called once, later, unless the call is given
        back before.
        """
        ...

    def give_back(self, exchange: str, now: float) -> None:
        """Give back what was taken for a call that does not go; harmless where nothing was."""
        ...

    def settle(self, exchange: str, end: End, generated: float, now: float) -> None:
        """Charge what a call has cost, now that it is over; harmless where nothing was taken.

        Args:
            exchange: its id.
            end: how it ended.
            generated: tokens that it has probably generated, where ``end`` does not say.
            now: the moment.
        """
        ...

    def levels(self, payer: Payer, now: float) -> tuple[Level | None, Level | None]:
        """Return how full a payer's buckets are, of requests and of tokens; None: unlimited."""
        ...
