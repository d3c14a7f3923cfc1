"""Decides once more what was decided before, from what was noted down then.

Rules this module keeps:

* It is the controller that decides: its gates, in its order, over a pool and a line that know only what
  was noted down. With the same rules the verdict is the same.
* What other gates said (mode, agents, breaker, rate, quota) is taken as they said it: they look at
  more than this call.
* With other rules for its class the answer is of the first order: what that one call would have met at
  that moment. Other calls that would have been let in before it, and what they would have taken, are
  not thought of. Whether the class was open is followed from call to call (`Marks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from extproc.core.capacity import Load, Pool, PoolLimits
from extproc.core.classes import ServiceClass
from extproc.core.controller import (
    Action,
    Candidate,
    Controller,
    Gate,
    Line,
    Refusal,
    RequestLimits,
    Verdict,
)
from extproc.core.fair_line import Waiting
from extproc.core.placement import Placement, Room, Shortage
from extproc.core.promises import Demand
from extproc.core.queue import Dispatch, P, Queue, Queued, QueueLimits, Refused, Shed
from extproc.core.reasons import REASONS, Reason
from extproc.core.standing import Notes, Standing
from extproc.core.tickets import Tickets
from extproc.core.watermarks import Watermarks

_POOL = "pool"
_ROUNDING = 1e-6
"""Seconds by which a sum of times may differ from the difference of the same times."""
_DECIDED_HERE = frozenset(("all", "request limits", "capacity", "queue"))
"""Gates whose word is found again; all others' is taken."""


@dataclass(frozen=True, slots=True)
class Past:
    """A decision that was made.

    Attributes:
        call: what was decided about; its ``notes`` say what the decision saw.
        verdict: what came out.
        waited: how long the call had waited, or None where it was decided when it came.
    """

    call: Candidate
    verdict: Verdict
    waited: float | None = None

    @property
    def notes(self) -> Notes:
        """What the decision saw."""
        return self.call.notes or Notes()


def replay(
    past: Past, service_class: ServiceClass | None = None, standing: Standing | None = None
) -> Verdict:
    """Return the verdict, with other rules for the call's class and another standing where given.

    A call that waited and would not have had its turn yet is told to wait on.
    """
    if past.verdict.action is Action.MERGE:
        return past.verdict  # no gate was asked
    call = replace(past.call, notes=None)
    if service_class is not None:
        who = replace(call.classification, service_class=service_class)
        call = replace(call, classification=who)
    pool = _PastPool(past, past.notes.standing if standing is None else standing)
    queue = _PastQueue(past)
    line = Line(queue, Tickets(b"", window=1.0), 0.0)
    controller = Controller({_POOL: pool}, _past_gates(past), {_POOL: line})
    if past.waited is None or REASONS[past.verdict.reason].gate not in _DECIDED_HERE:
        return controller.decide(call, _POOL, 0.0)
    line.calls[call.id] = call
    for each in controller.pump(_POOL, 0.0):
        return each.verdict
    return Verdict(Action.WAIT, Reason.WAITING, past.verdict.load)


class Marks:
    """Follows whether classes would have been open, had other rules held."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        """``classes`` are all there are, highest first, by the rules that might have been."""
        self._classes = {each.name: each for each in classes}
        self._watermarks = Watermarks(classes)

    def standing(self, past: Past, at: float) -> Standing | None:
        """Return what a call would have met; to be asked in the order of time.

        Args:
            past: the decision.
            at: when it was made, in seconds.
        """
        met = past.notes.standing
        service_class = self._classes.get(past.call.classification.service_class.name)
        if met is None or met.free is None or service_class is None:
            return met
        marks, ratio = self._watermarks, met.free / met.tightening
        marks.judge(ratio, at, may_open=True, own=met.own)
        found = past.notes.found
        if isinstance(found, Shortage) and found.free is not None and met.unmet is None:
            marks.refused(service_class, ratio)
        return met._replace(
            unmet=None if service_class.strict else marks.unmet(service_class, ratio)
        )


def _past_gates(past: Past) -> tuple[Gate, ...]:
    """Return the gates before the question of capacity."""
    verdict = past.verdict
    if REASONS[verdict.reason].gate not in _DECIDED_HERE:
        refusal = Refusal(verdict.reason, verdict.threshold, verdict.value, verdict.retry_after)
        return (lambda call, pool, now: refusal,)
    too_large = verdict.reason is Reason.BODY_TOO_LARGE and verdict.threshold is not None
    return (RequestLimits(int(verdict.threshold or 0) if too_large else past.call.body_bytes),)


class _PastPool(Pool):
    """A pool that knows what one call met, and nothing else."""

    def __init__(self, past: Past, standing: Standing | None) -> None:
        most = 1 if standing is None else standing.max_concurrency
        super().__init__(_POOL, PoolLimits(most, stale_after=math.inf, unknown_after=math.inf), ())
        self._past = past
        self._met = standing

    def load(self, now: float) -> Load:
        """Return the numbers of that moment."""
        return self._past.verdict.load

    def place(self, demand: Demand, now: float, spare: float = 0.0) -> Placement | Shortage:
        """Say whether the call fits; see `Pool.place`, whose questions these are."""
        met, service_class = self._met, demand.service_class
        if met is None or met.endpoints == 0:
            return Shortage(Reason.NO_ENDPOINT)
        room = None if met.free is None else Room(None, met.free, met.observed, met.tightening)
        if service_class.strict:
            return self._fits(room, 0.0)
        if room is not None and met.unmet is not None:
            return room.shortage(met.unmet, room.free)
        limit = self.concurrency_limit(service_class)
        limit = max(1, limit - math.floor(met.spare * met.max_concurrency))
        if met.in_flight >= limit:
            return Shortage(Reason.CONCURRENCY, limit, met.in_flight)
        return self._fits(room, service_class.close + met.spare)

    def squeeze(self, demand: Demand, now: float) -> Placement:
        """Return where the engine's queue took the call."""
        return Placement(self._past.verdict.endpoint, True, self._past.verdict.free, 0.0)

    def output(self, demand: Demand) -> float:
        """Return nothing: what it would generate decides nothing here."""
        return 0.0

    def _fits(self, room: Room | None, mark: float) -> Placement | Shortage:
        """Hold what the call would have left free against a mark."""
        found = self._past.notes.found
        if isinstance(found, Shortage) and found.reason is Reason.PREFILL_BACKLOG:
            return found
        if found is not None and found.room is not None:
            room = found.room
        if room is None:
            return Placement(self._past.verdict.endpoint, True, None, 0.0)
        # Of a call that was not looked at so far, what there was is near to what it would have left.
        left = room.free if found is None or found.free is None else found.free
        if left < mark * room.tightening and not self._went_hopeless():
            return room.shortage(mark, left)
        return Placement(self._past.verdict.endpoint, True, left, 0.0)

    def _went_hopeless(self) -> bool:
        """Say whether the call went though it left too little: it fits into no empty engine."""
        found, met = self._past.notes.found, self._past.notes.standing
        if not isinstance(found, Placement) or found.free is None or met is None:
            return False
        mark = self._past.call.classification.service_class.close + met.spare
        tightening = met.tightening if found.room is None else found.room.tightening
        return found.free < mark * tightening


class _PastQueue(Queue):
    """A queue that knows what became of one call."""

    def __init__(self, past: Past) -> None:
        super().__init__(QueueLimits(1, 1), (past.call.classification.service_class,))
        self._past = past

    def holds_up(self, service_class: ServiceClass) -> bool:
        """Say whether others waited when it came."""
        return self._past.notes.held_up

    def passed_by(self, service_class: ServiceClass, cost: int, now: float) -> None:
        """Count nothing."""

    def offer(self, call: Waiting, now: float) -> Queued | Refused:
        """Hold what broke a limit against that limit again."""
        verdict, service_class = self._past.verdict, call.service_class
        if service_class.max_wait <= 0:
            return Refused(Reason.PREDICTED_WAIT, 0.0, None)
        limit, value = verdict.threshold, verdict.value
        if limit is not None and value is not None and value > limit:
            if verdict.reason is Reason.QUEUE_FULL:
                return Refused(Reason.QUEUE_FULL, limit, value)
            if verdict.reason is Reason.PREDICTED_WAIT and value > service_class.max_wait:
                return Refused(Reason.PREDICTED_WAIT, service_class.max_wait, value)
        predicted = value if verdict.action is Action.WAIT and value is not None else 0.0
        return Queued(now + service_class.max_wait, predicted)

    def pump(self, now: float, place: Callable[[Waiting], P | None]) -> list[Dispatch[P] | Shed]:
        """Say what became of the call when its turn came, or its time was over."""
        past, waited = self._past, self._past.waited or 0.0
        who, verdict = past.call.classification, past.verdict
        waiting = Waiting(past.call.id, who.tenant, who.service_class, 1, 0, 0.0)
        if verdict.reason is Reason.QUEUE_FULL:
            full = verdict.threshold or 0.0, verdict.value or 0.0
            return [Shed(waiting, Reason.QUEUE_FULL, *full, waited)]
        longest = who.service_class.max_wait
        if verdict.reason is Reason.QUEUE_DEADLINE and waited >= longest - _ROUNDING:
            return [Shed(waiting, Reason.QUEUE_DEADLINE, longest, waited, waited)]
        found = place(waiting)
        return [] if found is None else [Dispatch(waiting, found, waited)]
