"""Remembers the last decisions, and counts all, beside the hot path.

Rules this module keeps:

* Hearing of a decision is one append; everything else is done some ten times a second, in batches.
* Memory is bounded: of what comes faster than it is taken, and of what is remembered, the oldest is
  forgotten. How much was lost is known.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from extproc.core.controller import Action
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended, WaitEnd

TURN_SECONDS = 0.1
"""Between two batches."""
FRESH = 1 << 16
"""Decisions that may wait for the next batch."""
REMEMBERED = 20_000
"""Decisions that are remembered; about 1 KiB each."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A decision, with the Unix time in seconds when it was made, and its number from 1."""

    number: int
    at: float
    record: Decided


class Recorder:
    """The decisions of one Tidegate; an `extproc.core.records.Observer`.

    Attributes:
        counts: of all decisions, by pool, class, verdict and reason.
        lost: decisions that came too fast to be looked at.
    """

    def __init__(
        self, wall_clock: Callable[[], float], *, fresh: int = FRESH, remembered: int = REMEMBERED
    ) -> None:
        self.counts: Counter[tuple[str, str, str, str]] = Counter()
        self.lost = 0
        self._wall_clock = wall_clock
        self._fresh: deque[tuple[float, Decided]] = deque(maxlen=fresh)
        self._heard = 0
        self._taken = 0
        self._ring: deque[Remembered] = deque(maxlen=remembered)
        self._takers: list[Callable[[list[Remembered]], None]] = []
        self._news = asyncio.Event()

    def decided(self, record: Decided) -> None:
        """A verdict was given."""
        self._heard += 1
        self._fresh.append((self._wall_clock(), record))

    def counted(self, pool: str, service_class: str, reason: Reason, count: int) -> None:
        """So many more were refused by Envoy, without a record of each."""
        self.counts[pool, service_class, Action.SHED.value, reason.value] += count

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        """A call has left the queue; its decision is heard of by itself."""

    def ended(self, record: Ended) -> None:
        """An admitted exchange is over; nothing of it is remembered."""

    def hand_to(self, taker: Callable[[list[Remembered]], None]) -> None:
        """Give every batch to ``taker`` as well, which must not block."""
        self._takers.append(taker)

    async def run(self) -> None:
        """Take batches until cancelled."""
        try:
            while True:
                await asyncio.sleep(TURN_SECONDS)
                self.turn()
        finally:
            self.turn()

    def turn(self) -> None:
        """Take what is fresh."""
        if not self._fresh:
            return
        self.lost += self._heard - self._taken - len(self._fresh)
        first = self._heard - len(self._fresh) + 1
        batch = [
            Remembered(number, at, record) for number, (at, record) in enumerate(self._fresh, first)
        ]
        self._fresh.clear()
        self._taken = self._heard
        for each in batch:
            record = each.record
            verdict = record.verdict
            key = record.pool, record.service_class, verdict.action.value, verdict.reason.value
            self.counts[key] += not record.by_envoy
        self._ring.extend(batch)
        for take in self._takers:
            take(batch)
        self._news.set()
        self._news = asyncio.Event()

    @property
    def last_number(self) -> int:
        """Return the number of the last decision that was taken; 0 where there is none."""
        return self._taken

    def oldest(self) -> float | None:
        """Return the Unix time of the oldest decision that is remembered, or None."""
        return self._ring[0].at if self._ring else None

    def newest(self) -> Iterator[Remembered]:
        """Yield what is remembered, the newest first."""
        yield from reversed(self._ring)

    def since(self, number: int) -> list[Remembered]:
        """Return what is remembered and has a higher number, the oldest first."""
        found: list[Remembered] = []
        for each in reversed(self._ring):
            if each.number <= number:
                break
            found.append(each)
        found.reverse()
        return found

    async def news(self) -> None:
        """Wait for the next batch."""
        await self._news.wait()
