"""Who waits for a place in a pool, and who goes next.

Rules this module keeps:

* Strict classes go first, by rank. The others share by weight what was admitted within a sliding
  window (`lane.SHARE_WINDOW`), counted in token cost: prompt + 2 · output, because a token that is
  generated keeps the engine busy about twice as long as one that is read.
* A class is never shed while a lower one is admitted for the same capacity. So nothing goes to the
  classes under one whose call does not fit, that has shed a call and still has others waiting, or
  whose oldest call has spent a tenth of its time. Weights decide who waits, not who is shed.
* Inside a class, tenants share by virtual token counters (VTC: Sheng et al., Fairness in Serving
  Large Language Models, OSDI 2024): the tenant that got least is next; one that was idle is lifted
  to the least active counter, so that idling saves nothing up. Inside a tenant, first come first
  served.
* Calls with a ticket go before what arrived after them first came, fair between tenants as well,
  while they get no more than a share of what their class gets (`lane.TICKET_SHARE`).
* Head of line: where a call does not fit, up to `LOOK_AHEAD` other tenants' calls of its class are
  tried; one that was passed `MOST_PASSES` times is waited for. In a strict class none passes.
* A call waits for at most its class's ``max_wait``. One that would wait longer, by the rate at
  which its class was served while calls waited, is refused at once.
* A tenant holds no more places and bytes than it leaves free, so that one cannot fill the queue.
  Places of lower classes count as free: their newest calls are displaced.
* All of it is synchronous, and takes O(log n) for each call that comes, leaves or goes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from extproc.core.classes import ServiceClass
from extproc.core.fair_line import Place, Waiting
from extproc.core.lane import Lane
from extproc.core.reasons import Reason

OUTPUT_WEIGHT = 2
"""What a generated token costs, in prompt tokens (Sheng et al. 2024, section 3)."""
LOOK_AHEAD = 4
"""How many other tenants' calls are tried in one go where the first does not fit."""
PRESSING = 0.5
"""Seconds after which a strict call that waits is worth cutting others for: a cut brings its room no
sooner than that (an engine hears of it after 0.1 s, a scrape after 0.2 more), and most find some."""
MOST_PASSES = 8
"""How often a call that does not fit may be passed by others of its class."""


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of one pool's queue: calls, and bytes of their bodies."""

    max_calls: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Queued:
    """The call waits, for about ``predicted`` seconds, until ``deadline`` at most."""

    deadline: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The call may not wait: why, the limit, and the number that broke it."""

    reason: Reason
    threshold: float
    value: float | None


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[P]):
    """A call that goes now, where ``place`` put it, after so many seconds."""

    call: Waiting
    placement: P
    waited: float


@dataclass(frozen=True, slots=True)
class Shed:
    """A call that has waited in vain: why, the limit, and the number that broke it."""

    call: Waiting
    reason: Reason
    threshold: float
    value: float
    waited: float


def token_cost(prompt: int, output: float) -> int:
    """Return what a call costs, in tokens: ``prompt`` to read and ``output`` to generate."""
    return max(1, prompt + math.ceil(OUTPUT_WEIGHT * output))


class Queue:
    """The calls that wait for one pool. Times are seconds on one clock that never goes back."""

    def __init__(self, limits: QueueLimits, classes: Sequence[ServiceClass]) -> None:
        self.limits = limits
        self._lanes = tuple(Lane(each) for each in classes)
        self._places: dict[str, Place] = {}
        self._bytes = 0
        self._numbers = itertools.count()
        self._displaced: dict[str, Shed] = {}

    def adjust(self, classes: Sequence[ServiceClass]) -> None:
        """Go on with other weights and longest waits; those that wait keep their deadlines."""
        for lane, service_class in zip(self._lanes, classes, strict=True):
            lane.service_class = service_class

    def __repr__(self) -> str:
        lanes = ", ".join(repr(lane) for lane in self._lanes)
        return f"<Queue {len(self)} calls, {self._bytes} bytes: {lanes}>"

    def __len__(self) -> int:
        return len(self._places)

    @property
    def bytes(self) -> int:
        """Return how many bytes the bodies of those that wait have."""
        return self._bytes

    def depth(self, service_class: ServiceClass) -> int:
        """Return how many calls of a class wait."""
        return len(self._lanes[service_class.rank].places)

    def oldest(self, service_class: ServiceClass) -> float | None:
        """Return when the call of a class that has waited longest was offered, or None."""
        places = self._lanes[service_class.rank].places
        return next(iter(places.values())).offered if places else None

    def holds_up(self, service_class: ServiceClass) -> bool:
        """Say whether a call that comes now must queue: its class waits, or one above does."""
        return any(lane.places for lane in self._lanes[: service_class.rank + 1])

    def next_deadline(self) -> float:
        """Return when `pump` has something to shed; infinite where nothing waits."""
        return -math.inf if self._displaced else min(lane.deadline() for lane in self._lanes)

    def pressing(self, now: float) -> Waiting | None:
        """Return the strict call whose turn it is, if it has waited for `PRESSING` already."""
        for lane in self._lanes:
            if lane.service_class.strict and lane.places:
                place = next(lane.in_turn(0, now))
                return place.call if now - place.offered >= PRESSING else None
        return None

    def predicted_wait(self, service_class: ServiceClass, tenant: str, now: float) -> float:
        """Return how many seconds a call that comes now would wait."""
        lane = self._lanes[service_class.rank]
        lane.pass_time(now)
        return lane.predicted_wait(tenant, now)

    def offer(self, call: Waiting, now: float) -> Queued | Refused:
        """Let a call wait, or say why it may not; whom it displaces comes out of the next `pump`.

        Raises:
            ValueError: a call with this id already waits.
        """
        if call.id in self._places:
            raise ValueError(f"call {call.id} already waits; offer each call once")
        service_class = call.service_class
        lane = self._lanes[service_class.rank]
        # A ticket is a promise, made when the wait could not be foreseen either.
        wait = 0.0 if call.ticketed else self.predicted_wait(service_class, call.tenant, now)
        refusal = self._out_of_bounds(call)
        if service_class.max_wait <= 0:
            return Refused(Reason.PREDICTED_WAIT, 0.0, None)
        if refusal is None and wait > service_class.max_wait:
            refusal = Refused(Reason.PREDICTED_WAIT, service_class.max_wait, wait)
        if refusal is not None:
            lane.short = bool(lane.places)
            return refusal
        lane.pass_time(now)
        place = Place(call, next(self._numbers), now)
        self._places[call.id] = place
        self._bytes += call.size
        lane.add(place)
        self._displace(service_class.rank, now)
        return Queued(place.deadline, wait)

    def leave(self, ident: str, now: float) -> bool:
        """Take a call out because its client left; say whether it was there."""
        if self._displaced.pop(ident, None) is not None:
            return True
        place = self._places.get(ident)
        if place is None:
            return False
        self._remove(place, now)
        return True

    def passed_by(self, service_class: ServiceClass, cost: int, now: float) -> None:
        """Count a call that went without waiting, so that it counts when classes share."""
        self._lanes[service_class.rank].served.add(cost, now)

    def pump(self, now: float, place: Callable[[Waiting], P | None]) -> list[Dispatch[P] | Shed]:
        """Return whose turn is over, then who goes now.

        Args:
            now: seconds.
            place: takes capacity for a call and says where, or takes nothing and returns None.
        """
        sheds = [*self._displaced.values(), *self._expire(now)]
        self._displaced.clear()
        # Nothing goes in the same breath to a class under one that has just been shed.
        barrier = min((shed.call.service_class.rank for shed in sheds), default=len(self._lanes))
        out: list[Dispatch[P] | Shed] = [*sheds]
        stuck: set[int] = set()
        while (lane := self._next_lane(now, barrier, stuck)) is not None:
            dispatch = self._serve(lane, now, place)
            if dispatch is None:
                stuck.add(lane.service_class.rank)
                barrier = min(barrier, lane.service_class.rank)
            else:
                out.append(dispatch)
        return out

    def _out_of_bounds(self, call: Waiting) -> Refused | None:
        """Hold a call against the bounds; see the module's rule on places."""
        lanes = self._lanes[: call.service_class.rank + 1]
        calls, size = lanes[-1].held_by(call.tenant)
        places_left = self.limits.max_calls - sum(len(lane.places) for lane in lanes)
        if calls + 1 > places_left:
            return Refused(Reason.QUEUE_FULL, places_left, calls + 1)
        bytes_left = self.limits.max_bytes - sum(lane.size for lane in lanes)
        if size + call.size > bytes_left:
            return Refused(Reason.QUEUE_FULL, bytes_left, size + call.size)
        return None

    def _displace(self, rank: int, now: float) -> None:
        """Make the queue fit its bounds again at the cost of the lowest classes' newest calls."""
        limits = self.limits
        while len(self) > limits.max_calls or self._bytes > limits.max_bytes:
            lane = next(each for each in reversed(self._lanes[rank + 1 :]) if each.places)
            place = next(reversed(lane.places.values()))
            few = len(self) > limits.max_calls
            limit, value = (limits.max_calls, len(self)) if few else (limits.max_bytes, self._bytes)
            self._displaced[place.call.id] = self._shed(place, Reason.QUEUE_FULL, limit, value, now)

    def _expire(self, now: float) -> Iterator[Shed]:
        for lane in self._lanes:
            while lane.deadline() <= now:
                place = next(iter(lane.places.values()))
                longest, waited = lane.service_class.max_wait, now - place.offered
                yield self._shed(place, Reason.QUEUE_DEADLINE, longest, waited, now)

    def _shed(
        self, place: Place, reason: Reason, threshold: float, value: float, now: float
    ) -> Shed:
        self._remove(place, now)
        lane = self._lanes[place.call.service_class.rank]
        lane.short = bool(lane.places)
        return Shed(place.call, reason, threshold, value, now - place.offered)

    def _next_lane(self, now: float, barrier: int, stuck: set[int]) -> Lane | None:
        """Return whose turn it is, down to rank ``barrier``: None where nobody may go."""
        turn: Lane | None = None
        for lane in self._lanes[: barrier + 1]:
            if lane.places and lane.service_class.rank not in stuck:
                if lane.service_class.strict:
                    return lane
                if turn is None or lane.share(now) < turn.share(now):
                    turn = lane
            if lane.needs_all(now):
                break
        return turn

    def _serve(
        self, lane: Lane, now: float, place: Callable[[Waiting], P | None]
    ) -> Dispatch[P] | None:
        """Dispatch one call of a lane, or return None where none of those that may go fits."""
        passed: list[Place] = []
        for each in lane.in_turn(0 if lane.service_class.strict else LOOK_AHEAD, now):
            placement = place(each.call)
            if placement is not None:
                for other in passed:
                    other.passes += 1
                for waiting in self._lanes[: lane.service_class.rank + 1]:
                    waiting.drain(each.call.cost, now)
                lane.charge(each.call, now)
                self._remove(each, now)
                return Dispatch(each.call, placement, now - each.offered)
            if each.passes >= MOST_PASSES:
                break
            passed.append(each)
        return None

    def _remove(self, place: Place, now: float) -> None:
        lane = self._lanes[place.call.service_class.rank]
        lane.pass_time(now)
        lane.remove(place)
        del self._places[place.call.id]
        self._bytes -= place.call.size
