"""The operator's word: which classes may pass at all, whatever room there is.

Rules this module keeps:

* `ModeGate` is the first gate, and one comparison.
* ``protect`` turns the lowest class away, ``transactions_only`` all that are not strict. The highest
  class passes in every mode, also where there is only one, or none is strict.
* ``shadow`` closes nothing; that its verdicts are not acted upon is for those who act.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from extproc.core.capacity import Pool
from extproc.core.classes import ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.reasons import Reason


class Mode(StrEnum):
    """What operators have switched to."""

    NORMAL = "normal"
    PROTECT = "protect"
    """The lowest class is turned away."""
    TRANSACTIONS_ONLY = "transactions_only"
    """Only strict classes pass: payments and orders."""
    SHADOW = "shadow"
    """Decide and record, and never act."""


class ModeGate:
    """Turns away the classes that the mode closes; an `extproc.core.controller.Gate`."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        """``classes`` are all there are, highest first."""
        strict = sum(each.strict for each in classes)
        self._lowest = {
            Mode.PROTECT: max(0, len(classes) - 2),
            Mode.TRANSACTIONS_ONLY: max(0, strict - 1),
        }
        self.classes = tuple(classes)
        self._open_down_to: float = math.inf
        self._refusal: Refusal | None = None
        self.mode = Mode.NORMAL

    def __repr__(self) -> str:
        return f"<ModeGate {self.mode}: closed {self.closed()}>"

    def switch(self, mode: Mode) -> None:
        """Go over to another mode; calls that come from now on are judged by it."""
        self.mode = mode
        self._open_down_to = self._lowest.get(mode, math.inf)
        self._refusal = _REFUSALS.get(mode)

    def closed(self) -> list[str]:
        """Return the names of the classes that are turned away."""
        return [each.name for each in self.classes if each.rank > self._open_down_to]

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `extproc.core.controller.Gate`."""
        if call.classification.service_class.rank <= self._open_down_to:
            return None
        return self._refusal


_REFUSALS = {
    Mode.PROTECT: Refusal(Reason.MODE_PROTECT),
    Mode.TRANSACTIONS_ONLY: Refusal(Reason.MODE_TRANSACTIONS_ONLY),
}
