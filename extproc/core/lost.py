"""Exchanges whose end we never heard of: found by what the engines have, never by the clock.

Rules this module keeps:

* An exchange counts as lost only where all engines together show fewer sequences than we think, in
  every scrape for a while; no more are let go than are missing.
* Of those, the ones go that have outlived their predicted length the most, and by far.

Load of others hides what is missing here; it then makes up for it in the bias just as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from extproc.core.endpoint import Endpoint
from extproc.core.promises import Promise
from extproc.core.readings import Freshness

ROUNDS = 3
"""Scrapes of every endpoint in a row that must show too few sequences."""
OVERRUN = 2.0
"""How many times its predicted length a sequence must have lasted."""


class LostEnds:
    """Watches one pool's scrapes for exchanges that no engine has."""

    def __init__(self) -> None:
        self._missing: deque[int] = deque()

    def scraped(self, states: Collection[Endpoint], now: float) -> list[Promise]:
        """Take note that one of the endpoints was scraped, and return what is lost."""
        if any(state.freshness(now) is not Freshness.FRESH for state in states):
            self._missing.clear()
            return []
        self._missing.append(sum(state.surplus for state in states))
        if len(self._missing) < ROUNDS * len(states):
            return []
        missing = min(self._missing)
        self._missing.clear()
        return _most_overdue(states, missing, now) if missing > 0 else []


def _most_overdue(states: Collection[Endpoint], missing: int, now: float) -> list[Promise]:
    overruns = [(s.promises.overrun(p, now), p) for s in states for p in s.promises]
    overruns.sort(key=lambda each: each[0], reverse=True)
    lost: list[Promise] = []
    for overrun, promise in overruns:
        if overrun >= OVERRUN and promise.demand.choices <= missing:
            missing -= promise.demand.choices
            lost.append(promise)
    return lost
