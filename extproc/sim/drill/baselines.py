"""The controllers that ours is compared with.

Rules kept here:

- Each is as strong as its idea allows: engines schedule by priority (except for ``none``), and
  calls go to the endpoint with the fewest requests.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from extproc.core.classes import ServiceClass
from extproc.core.readings import Reading
from extproc.sim.drill.policy import NOTHING, Action, Offer, Policy, Refuse, Send
from extproc.sim.engine_config import Policy as Scheduling


class Uncontrolled(Policy):
    """No gateway: Envoy's least-request balancing, and engines that serve first come, first served."""

    scheduling = Scheduling.FCFS

    def offer(self, offer: Offer, now: float) -> Iterable[Action]:
        """See `Policy`."""
        return (Send(offer.id),)


class EnginePriority(Uncontrolled):
    """No gateway, but engines that serve by priority."""

    scheduling = Scheduling.PRIORITY


class Watermark(Policy):
    """The plain rules: shed by the scraped free ratio with hysteresis, and by calls in flight.

    Rule 2: P2 under 15 % free or from 80 % of the concurrency on; rule 3: P1 under 8 %; rule 4:
    open again above 20 and 12 %. P0 always passes.
    """

    def __init__(self, classes: Sequence[ServiceClass], max_concurrency: int) -> None:
        self._classes = classes
        self._limits = [max(1, math.floor(c.concurrency * max_concurrency)) for c in classes]
        self._free: dict[str, float] = {}
        self._shut = [False] * len(classes)
        self._in_flight = 0

    def offer(self, offer: Offer, now: float) -> Iterable[Action]:
        """See `Policy`."""
        if not self._classes[offer.rank].strict:
            if self._shut[offer.rank]:
                return (Refuse(offer.id, "kv_watermark"),)
            if self._in_flight >= self._limits[offer.rank]:
                return (Refuse(offer.id, "concurrency"),)
        self._in_flight += 1
        return (Send(offer.id),)

    def observed(
        self, endpoint: str, reading: Reading, sent_at: float, now: float
    ) -> Iterable[Action]:
        """See `Policy`."""
        self._free[endpoint] = 1.0 - reading.kv_usage
        free = sum(self._free.values()) / len(self._free)
        above = False
        for service_class in self._classes:
            rank = service_class.rank
            shut = free < service_class.close or (self._shut[rank] and free <= service_class.open)
            above = (shut and not service_class.strict) or above
            self._shut[rank] = above
        return NOTHING

    def failed(self, endpoint: str, now: float) -> Iterable[Action]:
        """See `Policy`."""
        return NOTHING

    def ended(self, call: str, usage: tuple[int, int] | None, now: float) -> Iterable[Action]:
        """See `Policy`."""
        self._in_flight -= 1
        return NOTHING

    def closed(self, now: float) -> tuple[bool, ...]:
        """See `Policy`."""
        return tuple(self._shut)


class Slots(Policy):
    """A fixed number of calls in flight, and before them a queue, highest class first.

    Args:
        slots: in flight at most, over all endpoints.
        patience: seconds that a call of each class waits.
    """

    def __init__(self, slots: int, patience: Sequence[float]) -> None:
        self._slots = slots
        self._patience = patience
        self._in_flight = 0
        self._queue: list[tuple[int, int, Offer]] = []
        self._deadlines: list[tuple[float, int, str]] = []
        self._waiting: set[str] = set()
        self._numbers = itertools.count()

    def offer(self, offer: Offer, now: float) -> Iterable[Action]:
        """See `Policy`."""
        number = next(self._numbers)
        heapq.heappush(self._queue, (offer.rank, number, offer))
        heapq.heappush(self._deadlines, (now + self._patience[offer.rank], number, offer.id))
        self._waiting.add(offer.id)
        return self._pump(now)

    def ended(self, call: str, usage: tuple[int, int] | None, now: float) -> Iterable[Action]:
        """See `Policy`."""
        self._in_flight -= 1
        return self._pump(now)

    def wake(self, now: float) -> Iterable[Action]:
        """See `Policy`."""
        return self._pump(now)

    def _pump(self, now: float) -> list[Action]:
        actions: list[Action] = list(self._sendable())
        while self._deadlines and (
            self._deadlines[0][0] <= now or self._deadlines[0][2] not in self._waiting
        ):
            call = heapq.heappop(self._deadlines)[2]
            if call in self._waiting:
                self._waiting.remove(call)
                actions.append(Refuse(call, "queue_deadline"))
        self.wake_at = self._deadlines[0][0] if self._deadlines else math.inf
        return actions

    def _sendable(self) -> Iterator[Action]:
        while self._queue and self._in_flight < self._slots:
            offer = heapq.heappop(self._queue)[2]
            if offer.id in self._waiting:
                self._waiting.remove(offer.id)
                self._in_flight += 1
                yield Send(offer.id)
