"""Which classes are closed: watermarks with hysteresis, and no class served over a higher one's head.

Rules this module keeps:

* A class closes when the free ratio falls under its lower mark, and opens above its upper one.
* Where a class is closed, all under it are closed too.
* A call that is refused for want of capacity closes the classes under its own, until there is at
  least as much room as when it was refused: what it did not get, no lower class gets.
* A strict class is never closed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.core.classes import ServiceClass


class Watermarks:
    """The open or closed state of every class of one pool."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._closed = [False] * len(self._classes)
        self._room_refused = [-math.inf] * len(self._classes)

    def closed(self, service_class: ServiceClass) -> bool:
        """Say whether no call of this class is let in."""
        return self._closed[service_class.rank]

    def mark(self, service_class: ServiceClass, ratio: float) -> float:
        """Return the mark that a closed class must pass: once above the lower one, the upper one."""
        if ratio < service_class.close:
            return service_class.close
        return max(service_class.open, self._room_refused[service_class.rank])

    def judge(self, ratio: float | None, *, may_open: bool) -> None:
        """Bring every class up to date.

        Args:
            ratio: what is free, or None where nothing is known: then nothing is closed.
            may_open: False where the change cannot have made room.
        """
        closed_above = False
        for service_class in self._classes:
            rank = service_class.rank
            if ratio is None:
                shut = False
            elif ratio < service_class.close:
                shut = True
            elif may_open and ratio > service_class.open and ratio >= self._room_refused[rank]:
                shut = False
            else:
                shut = self._closed[rank]
            shut = (shut and not service_class.strict) or closed_above
            if not shut:
                self._room_refused[rank] = -math.inf
            self._closed[rank] = closed_above = shut

    def refused(self, service_class: ServiceClass, ratio: float) -> None:
        """Close the classes under one whose call was refused when so much was free."""
        for rank in range(service_class.rank + 1, len(self._classes)):
            self._closed[rank] = True
            self._room_refused[rank] = ratio
