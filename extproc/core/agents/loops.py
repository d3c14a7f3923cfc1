"""Which calls a run has made: the same one again and again, or two in turns.

Rules this module keeps:

* A call is known by a fingerprint of what it asks the model. A call that was turned away was not
  made: a client that comes again after a shed is no loop.
* The `REMEMBERED` calls made last are known; a loop among more than that is no loop of an agent.
"""

from __future__ import annotations

REMEMBERED = 32
"""Different calls of one run."""
LATEST = 32
"""Calls in their order, in which two in turns are looked for."""


class Repeats:
    """The calls that one run has made."""

    __slots__ = ("_counts", "_order")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._order: list[bytes] = []

    def __len__(self) -> int:
        return len(self._counts)

    def made(self, print_: bytes) -> int:
        """Return how often a call was made."""
        return self._counts.get(print_, 0)

    def alternations(self, print_: bytes) -> int:
        """Return how often, without a break, this call and one other took turns up to now.

        Counted are the pairs that the latest calls end in, of which this call would begin another.
        """
        order = self._order
        if len(order) < 2 or order[-2] != print_ or order[-1] == print_:
            return 0
        pair, run = (order[-2], order[-1]), 0
        for index, each in enumerate(reversed(order)):
            if each != pair[1 - index % 2]:
                break
            run += 1
        return run // 2

    def add(self, print_: bytes) -> None:
        """Note that a call is made."""
        self._counts[print_] = self._counts.pop(print_, 0) + 1
        self._order.append(print_)
        del self._order[:-LATEST]
        if len(self._counts) > REMEMBERED:
            del self._counts[next(iter(self._counts))]

    def undo(self, print_: bytes) -> None:
        """Note that a call was turned away after all."""
        left = self._counts.get(print_, 0) - 1
        if left > 0:
            self._counts[print_] = left
        else:
            self._counts.pop(print_, None)
        if self._order and self._order[-1] == print_:
            self._order.pop()
