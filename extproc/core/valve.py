"""How much of a flood Envoy shall refuse itself: a share of each class and pool, out of what was decided.

Every call that comes to us costs the loop about half a millisecond, a refused one too. Where far more
of a class come than can be let in, Envoy refuses the excess (`docs/valve.md`), and the rest comes to us
as before, so that queue, tickets and explanations go on.

Rules this module keeps:

* A strict class is never refused.
* Only what is refused for want of capacity or by the mode counts: refusals that are about one tenant or
  one body say nothing of the class.
* Envoy lets through what we would let in, and `through` refusals a second besides: with λ calls a second
  of which we let in a, the share is 1 − (a + through) / λ. Where the class is closed, a is 0.
* What Envoy refuses is not told us in time; but with share f we see λ · (1 − f) of the calls.
* It shuts where twice `through` is refused, and opens where less than `through` would be.
* No call is refused while a lower class is let in, unless its own class is closed: by chance the lower
  one would get the room that is meant for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from extproc.core.classes import ServiceClass
from extproc.core.reasons import REASONS, Reason

MEMORY = 0.25
"""Seconds: the time constant of the measured rates. A flood is seen within a tenth of a second."""
MOST = 0.999
"""Some calls always come to us, or nobody would see that the flood is over."""
REFUSALS = frozenset(
    reason
    for reason, entry in REASONS.items()
    if entry.reply is not None and entry.gate in ("operator mode", "capacity", "queue")
)
"""Reasons that are about the class."""


@dataclass(frozen=True, slots=True)
class Shut:
    """What Envoy refuses of a class and pool: the share, over 0 and under 1, and why."""

    share: float
    reason: Reason


@dataclass(slots=True)
class _Flow:
    """The calls of one class for one pool; rates are per second."""

    let_in: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)
    came: float = 0.0
    entered: float = 0.0
    share: float = 0.0
    reason: Reason = Reason.FLOOD
    let_in_at: float = -math.inf


Closed = Mapping[tuple[str, str], Reason]
"""Why a class is closed, by pool and class."""


class Valve:
    """Decides how far Envoy shuts; one for all pools.

    Args:
        pools: their names.
        classes: all there are, highest first.
        through: refused calls a second, of each class and pool, that come to us all the same.
    """

    def __init__(
        self, pools: Collection[str], classes: Sequence[ServiceClass], *, through: float
    ) -> None:
        self._through = through
        self._lowered = [each.name for each in classes if not each.strict]
        self._flows = {(pool, name): _Flow() for pool in pools for name in self._lowered}
        self._pools = tuple(pools)
        self._turned_at = -math.inf

    def __repr__(self) -> str:
        return f"<Valve {self.shut()}>"

    def decided(self, pool: str, service_class: str, reason: Reason) -> None:
        """Hear of a verdict about a call that came to us."""
        flow = self._flows.get((pool, service_class))
        if flow is None:
            return
        if reason in REFUSALS:
            flow.refused[reason] += 1
        else:
            flow.let_in += 1

    def turn(self, now: float, closed: Closed) -> dict[tuple[str, str], Shut]:
        """Take account of what was decided since the last turn; return what Envoy shall refuse.

        Args:
            now: the clock's time, in seconds.
            closed: the classes that let nothing in at the moment, with the reason.
        """
        passed, self._turned_at = now - self._turned_at, now
        if passed <= 0:
            return self.shut()
        for pool in self._pools:
            lower_let_in = False
            for name in reversed(self._lowered):
                flow, why = self._flows[pool, name], closed.get((pool, name))
                self._measure(flow, now, passed)
                self._adjust(flow, why, held_back=lower_let_in and why is None)
                lower_let_in = lower_let_in or now - flow.let_in_at < 1.0
        return self.shut()

    def shut(self) -> dict[tuple[str, str], Shut]:
        """Return what Envoy shall refuse, by pool and class; what is open is left out."""
        return {
            key: Shut(flow.share, flow.reason) for key, flow in self._flows.items() if flow.share
        }

    def rates(self) -> Iterator[tuple[str, str, float]]:
        """Yield how many calls come a second, by pool and class: an estimate while some are refused."""
        for (pool, name), flow in self._flows.items():
            yield pool, name, flow.came

    @staticmethod
    def _measure(flow: _Flow, now: float, passed: float) -> None:
        weight = 0.0 if math.isinf(passed) else -math.expm1(-passed / MEMORY)
        seen = flow.let_in + flow.refused.total()
        if weight:
            flow.came += weight * (seen / passed / (1.0 - flow.share) - flow.came)
            flow.entered += weight * (flow.let_in / passed - flow.entered)
        if flow.let_in:
            flow.let_in_at = now
        if flow.refused:
            ((flow.reason, _),) = flow.refused.most_common(1)
        flow.let_in = 0
        flow.refused.clear()

    def _adjust(self, flow: _Flow, closed: Reason | None, *, held_back: bool) -> None:
        entering = 0.0 if closed is not None else flow.entered
        if closed is not None:
            flow.reason = closed
        excess = flow.came - entering
        enough = self._through if flow.share else 2.0 * self._through
        if held_back or excess <= enough:
            flow.share = 0.0
        else:
            flow.share = min(MOST, 1.0 - (entering + self._through) / flow.came)
