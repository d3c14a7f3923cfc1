"""Which classes are closed: watermarks with hysteresis, and no class served over a higher one's head.

Rules this module keeps:

* Nothing of a class is let in while less than its lower mark is free.
* A class closes when the free ratio falls under its lower mark, and opens above its upper one. At
  once where most of the load is not ours; else when that has lasted for `CONFIRM` seconds: higher
  classes may use the room under a lower one's mark, and give it back soon. So a class does not open
  and close with every call of a higher one.
* Where a class is closed, all under it are closed too.
* What a call did not get, no lower class gets: from a refusal for want of capacity on, the classes
  under its own are barred until there is at least as much room as when it was refused.
* A strict class is never closed nor barred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.core.classes import ServiceClass

CONFIRM = 5.0
"""Seconds for which a shortage of our own making must last until it closes a class: about as long as
calls that end need to give back what those of higher classes took from the margin."""


class Watermarks:
    """The open or closed state of every class of one pool."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._closed = [False] * len(self._classes)
        self._short_since = [math.inf] * len(self._classes)
        self._refused_at = [-math.inf] * len(self._classes)

    def adjust(self, classes: Sequence[ServiceClass]) -> None:
        """Judge by other marks from now on; ranks stay."""
        self._classes = tuple(classes)

    def closed(self, service_class: ServiceClass) -> bool:
        """Say whether the class is closed."""
        return self._closed[service_class.rank]

    def unmet(self, service_class: ServiceClass, ratio: float) -> float | None:
        """Return the mark that keeps the class's calls out, None where each is to be looked at.

        For ``ratio``, which was judged last.
        """
        rank = service_class.rank
        if ratio < service_class.close:
            return service_class.close
        if self._closed[rank]:
            return max(service_class.open, self._refused_at[rank])
        return self._refused_at[rank] if self._refused_at[rank] > -math.inf else None

    def judge(self, ratio: float | None, now: float, *, may_open: bool, own: float = 1.0) -> None:
        """Bring every class up to date.

        Args:
            ratio: what is free, or None where nothing is known: then nothing is closed.
            now: the clock's time, in seconds.
            may_open: False where the change cannot have made room.
            own: what would be free if engines had nothing but what we let in.
        """
        shut = False
        mostly_ours = ratio is not None and 2.0 * (1.0 - own) >= 1.0 - ratio
        for service_class in self._classes:
            rank = service_class.rank
            if ratio is None or (may_open and ratio >= self._refused_at[rank]):
                self._refused_at[rank] = -math.inf
            if ratio is None or ratio >= service_class.close:
                self._short_since[rank] = math.inf
            elif math.isinf(self._short_since[rank]):
                self._short_since[rank] = now
            if ratio is None:
                self._closed[rank] = False
            elif not service_class.strict:
                grace = CONFIRM if mostly_ours else 0.0
                if self._closed[rank]:
                    shut = shut or not (may_open and ratio > service_class.open)
                else:
                    shut = shut or now - self._short_since[rank] >= grace
                self._closed[rank] = shut

    def refused(self, service_class: ServiceClass, ratio: float) -> None:
        """Bar the classes under one whose call was refused when so much was free."""
        for rank in range(service_class.rank + 1, len(self._classes)):
            self._refused_at[rank] = ratio
