"""Which classes are closed: watermarks with hysteresis, and no class served over a higher one's head.

Rules this module keeps:

* A class closes when the free ratio falls under its lower mark, and opens above its upper one.
* Where a class is closed, all under it are closed too.
* A call that is refused for want of capacity closes the classes under its own, until there is at
  least as much room as when it was refused: what it did not get, no lower class gets.
* A strict class is never closed.
* A class that closes again and again is let in with caution: while open its calls must leave more
  than the lower mark free, up to the upper one, so that those of higher classes do not close it at
  once; while closed it opens at up to `REOPEN` times its upper mark. So a class does not open and
  close with every call while the pool is full. Caution fades; one or two closings cause none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.core.classes import ServiceClass

TOLERATED = 2.0
"""Recent closings of a class that cause no caution; each one more halves what it is short of 1."""
RECENT_SECONDS = 120.0
"""Time in which a closing's weight falls to 1/e."""
REOPEN = 1.5
"""How many times its upper mark a class opens at, at full caution."""


class Watermarks:
    """The open or closed state of every class of one pool."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._closed = [False] * len(self._classes)
        self._closings = [0.0] * len(self._classes)
        self._room_refused = [-math.inf] * len(self._classes)
        self._judged_at = -math.inf

    def adjust(self, classes: Sequence[ServiceClass]) -> None:
        """Judge by other marks from now on; ranks stay."""
        self._classes = tuple(classes)

    def closed(self, service_class: ServiceClass) -> bool:
        """Say whether no call of this class is let in."""
        return self._closed[service_class.rank]

    def required(self, service_class: ServiceClass) -> float:
        """Return the ratio that a call of an open class must leave free."""
        caution = self._caution(service_class)
        return service_class.close + caution * (service_class.open - service_class.close)

    def mark(self, service_class: ServiceClass, ratio: float) -> float:
        """Return the mark that a closed class must pass: once above the lower one, the upper one."""
        if ratio < service_class.close:
            return service_class.close
        return max(self._upper(service_class), self._room_refused[service_class.rank])

    def judge(self, ratio: float | None, now: float, *, may_open: bool) -> None:
        """Bring every class up to date.

        Args:
            ratio: what is free, or None where nothing is known: then nothing is closed.
            now: the clock's time, in seconds.
            may_open: False where the change cannot have made room.
        """
        fade = math.exp((self._judged_at - now) / RECENT_SECONDS)
        self._judged_at = now
        closed_above = False
        for service_class in self._classes:
            rank = service_class.rank
            self._closings[rank] *= fade
            shut = not service_class.strict and self._shut(service_class, ratio, may_open=may_open)
            shut = shut or closed_above
            if shut and not self._closed[rank]:
                self._closings[rank] += 1.0
            if not shut:
                self._room_refused[rank] = -math.inf
            self._closed[rank] = closed_above = shut

    def refused(self, service_class: ServiceClass, ratio: float) -> None:
        """Close the classes under one whose call was refused when so much was free."""
        for rank in range(service_class.rank + 1, len(self._classes)):
            self._closings[rank] += not self._closed[rank]
            self._closed[rank] = True
            self._room_refused[rank] = ratio

    def _shut(self, service_class: ServiceClass, ratio: float | None, *, may_open: bool) -> bool:
        if ratio is None:
            return False
        if ratio < service_class.close:
            return True
        if not self._closed[service_class.rank]:
            return False
        room = self._room_refused[service_class.rank]
        opens = ratio >= room and ratio > self._upper(service_class)
        return not (may_open and opens)

    def _caution(self, service_class: ServiceClass) -> float:
        """Return how careful this class is let in, 0..1."""
        return 1.0 - math.pow(0.5, max(0.0, self._closings[service_class.rank] - TOLERATED))

    def _upper(self, service_class: ServiceClass) -> float:
        caution = self._caution(service_class)
        return service_class.open * (1.0 + (REOPEN - 1.0) * caution)
