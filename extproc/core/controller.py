"""The decision: gates in order, one verdict out.

Rules this module keeps:

* The first gate that does not pass decides; a gate knows nothing of the others. Capacity is the last
  question: who finds none may wait, if its class does.
* A call that comes while others of its class, or of one above, wait queues behind them, even if it
  would fit.
* What tickets promise is kept back: as much of the pool as tickets of a call's own class and those
  above are likely to need. A call with a ticket leaves free what belongs to higher classes.
* A refused call leaves nothing behind: capacity is taken only when every gate has passed.
* A verdict carries the numbers that decided it, so that it can be explained and replayed.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from extproc.core.capacity import Load, Placement, Pool, Shortage
from extproc.core.classes import Classification
from extproc.core.eviction import Evictor
from extproc.core.fair_line import Waiting
from extproc.core.outcomes import End
from extproc.core.promises import Demand, Promise
from extproc.core.queue import Dispatch, Queue, Refused, Shed, token_cost
from extproc.core.reasons import REASONS, Reason, ReplyKind
from extproc.core.standing import Notes
from extproc.core.tickets import Tickets
from extproc.core.tokens import PromptParts

UNSETTLED = 4096
"""Exchanges that are over and whose end is not reported yet; of more, the oldest are forgotten."""


class Action(StrEnum):
    """What happens to a call."""

    ADMIT = "admit"
    WAIT = "wait"
    """Nothing yet: the call is in the queue, and `Controller.pump` will say."""
    SHED = "shed"
    REJECT = "reject"
    MERGE = "merge"
    """It gets the answer of an identical call of the same run."""
    PASS = "pass"  # noqa: S105


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A call that asks to be let in.

    Attributes:
        id: the exchange's id, unique while it lives.
        classification: who calls, what for, and the limits.
        prompt_tokens: estimated length of the prompt in tokens.
        body_bytes: size of the body.
        defect: why the body cannot be read, or None.
        max_output: tokens of each choice at which the engine will end it, or None; 0 where nothing
            is generated, as for embeddings.
        choices: how many texts are generated.
        parts: what the prompt is made of, where tokens can be learned from it.
        kept_bytes: of the body, while the call waits.
        since: with a ticket, when the call first came, on the clock of ``now``; else None.
        notes: takes down what the decision saw, where somebody wants to know.
    """

    id: str
    classification: Classification
    prompt_tokens: int
    body_bytes: int
    defect: str | None = None
    max_output: int | None = None
    choices: int = 1
    parts: PromptParts | None = None
    kept_bytes: int = 0
    since: float | None = None
    notes: Notes | None = None

    @property
    def demand(self) -> Demand:
        """What it wants of an engine."""
        who = self.classification
        return Demand(
            service_class=who.service_class,
            task=who.task,
            prompt=self.prompt_tokens,
            max_output=self.max_output,
            choices=self.choices,
            parts=self.parts,
        )


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A gate's no, with the threshold that was not met and the number held against it.

    ``retry_after`` is the number of seconds after which it would be a yes, where the gate knows.
    """

    reason: Reason
    threshold: float | None = None
    value: float | None = None
    retry_after: float | None = None


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What was decided about a call, and on which numbers.

    ``endpoint`` is where it should go, or None where Envoy chooses. ``free`` is the predicted free
    ratio after it came, or None where it did not come or nothing is known. ``retry_after`` is when
    it would be let in, in seconds, where a gate knows.
    """

    action: Action
    reason: Reason
    load: Load
    threshold: float | None = None
    value: float | None = None
    endpoint: str | None = None
    free: float | None = None
    retry_after: float | None = None


class Gate(Protocol):
    """One question that every call must pass."""

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """Return why the call may not pass, or None."""
        ...


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Refuses what no amount of capacity would make right."""

    max_body: int

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `Gate`."""
        if call.body_bytes > self.max_body:
            return Refusal(Reason.BODY_TOO_LARGE, self.max_body, call.body_bytes)
        if call.defect is not None:
            return Refusal(Reason.BAD_REQUEST)
        longest = call.classification.max_prompt
        if longest is not None and call.prompt_tokens > longest:
            return Refusal(Reason.PROMPT_TOO_LONG, longest, call.prompt_tokens)
        return None


@dataclass(frozen=True)
class Line:
    """The line before one pool.

    Attributes:
        queue: who waits.
        tickets: who has a place on coming back.
        reserve: largest share of the pool, 0..1, that is kept back for those.
        calls: those that wait, by id.
    """

    queue: Queue
    tickets: Tickets
    reserve: float
    calls: dict[str, Candidate] = field(default_factory=dict)

    def spare(self, call: Candidate, pool: Pool) -> float:
        """Return the share of the pool, 0..1, that a call must leave to the tickets of others."""
        service_class = call.classification.service_class
        if service_class.strict:
            return 0.0
        rank = service_class.rank - (call.since is not None)
        return min(self.reserve, self.tickets.expected(rank) / pool.limits.max_concurrency)


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a call that has waited, after so many seconds."""

    call: Candidate
    verdict: Verdict
    waited: float


class Controller:
    """Holds the pools and the lines before them, and asks the gates.

    A pool without a line has no queue: what finds no room is shed, or, where its class is strict,
    left to the engine's own queue.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        gates: Sequence[Gate],
        lines: Mapping[str, Line] | None = None,
    ) -> None:
        self.pools = dict(pools)
        self.lines = dict(lines or {})
        self._gates = tuple(gates)
        self._ended: OrderedDict[str, Promise] = OrderedDict()
        self._evictors = {
            name: Evictor(pool)
            for name, pool in self.pools.items()
            if any(each.evictable for each in pool.classes)
        }

    def decide(self, call: Candidate, pool_name: str, now: float) -> Verdict:
        """Decide about a call.

        Where it is admitted, its place is reserved until `release`; where it waits, it does so
        until `pump` returns it, or until `leave`.
        """
        pool = self.pools[pool_name]
        load = pool.load(now)
        for gate in self._gates:
            refusal = gate(call, pool, now)
            if refusal is not None:
                return refuse(refusal, load)
        line = self.lines.get(pool_name)
        service_class = call.classification.service_class
        if line is not None and line.queue.holds_up(service_class):
            if call.notes is not None:
                call.notes.held_up = True
            return self._queue(call, pool, line, load, now)
        found = self._place(call, pool, line, now)
        if isinstance(found, Placement):
            if line is not None:
                cost = token_cost(call.prompt_tokens, call.choices * found.left)
                line.queue.passed_by(service_class, cost, now)
            return _admit(found, load)
        if found.reason in _NO_ROOM and line is not None and service_class.max_wait > 0:
            return self._queue(call, pool, line, load, now)
        if found.reason in _NO_KV and service_class.strict:
            demand = call.demand
            squeezed = pool.squeeze(demand, now)
            pool.reserve(call.id, demand, squeezed.endpoint, now, squeezed.left)
            return _admit(squeezed, load)
        return refuse(found, load)

    def pump(self, pool_name: str, now: float) -> list[Decision]:
        """Return what has become of those that wait: the admitted hold capacity until `release`.

        To be called when capacity may have come free, when calls came, and at `next_deadline`.
        """
        pool, line = self.pools[pool_name], self.lines[pool_name]
        load = pool.load(now)

        def place(waiting: Waiting) -> Placement | None:
            found = self._place(line.calls[waiting.id], pool, line, now)
            return found if isinstance(found, Placement) else None

        return [
            Decision(line.calls.pop(each.call.id), _conclude(each, load), each.waited)
            for each in line.queue.pump(now, place)
        ]

    def recall(self, pool_name: str, gate: Gate, now: float) -> list[tuple[Candidate, Verdict]]:
        """Take those out of the queue that a gate does not let pass any more; return their verdicts."""
        pool, line = self.pools[pool_name], self.lines[pool_name]
        load = pool.load(now)
        recalled = []
        for call in list(line.calls.values()):
            refusal = gate(call, pool, now)
            if refusal is not None and self.leave(call.id, pool_name, now):
                recalled.append((call, refuse(refusal, load)))
        return recalled

    def admit(self, call: Candidate, pool_name: str, now: float) -> None:
        """Count a call in, whatever was decided: it goes to the engine."""
        self.leave(call.id, pool_name, now)
        self.pools[pool_name].reserve(call.id, call.demand, None, now)

    def evictions(
        self, pool_name: str, now: float, cuttable: Container[str] | None = None
    ) -> tuple[str, ...]:
        """Return the exchanges to cut now so that strict calls have room; see `eviction`.

        To be called after `pump`, and after scrapes. Each exchange is named once. Who cuts it
        says `release` as soon as its stream ends, and `settle` with `Outcome.EVICTED`; one that
        ends otherwise meanwhile does no harm.

        Args:
            pool_name: the pool.
            now: the clock's time.
            cuttable: exchanges that can be ended well at this moment; None: all.
        """
        evictor = self._evictors.get(pool_name)
        if evictor is None:
            return ()
        line = self.lines.get(pool_name)
        waiting = None if line is None else line.queue.pressing(now)
        wanted = None if line is None or waiting is None else line.calls[waiting.id].demand
        return evictor.decide(now, wanted=wanted, cuttable=cuttable)

    def next_deadline(self) -> float:
        """Return when `pump` has to be called at the latest; infinite where nobody waits."""
        return min((each.queue.next_deadline() for each in self.lines.values()), default=math.inf)

    def leave(self, exchange: str, pool_name: str, now: float) -> bool:
        """Take a call out of the queue; say whether it was there."""
        line = self.lines.get(pool_name)
        if line is None or line.calls.pop(exchange, None) is None:
            return False
        return line.queue.leave(exchange, now)

    def _place(
        self, call: Candidate, pool: Pool, line: Line | None, now: float
    ) -> Placement | Shortage:
        """Find a place for a call and reserve it, or say why there is none."""
        spare = 0.0 if line is None else line.spare(call, pool)
        demand = call.demand
        found = pool.place(demand, now, spare)
        if call.notes is not None:
            call.notes.found = found
            call.notes.standing = pool.standing(call.classification.service_class, now, spare)
        if isinstance(found, Placement):
            pool.reserve(call.id, demand, found.endpoint, now, found.left)
        return found

    def _queue(self, call: Candidate, pool: Pool, line: Line, load: Load, now: float) -> Verdict:
        answer = line.queue.offer(_waiting(call, pool, now), now)
        if isinstance(answer, Refused):
            return refuse(answer, load)
        line.calls[call.id] = call
        return Verdict(Action.WAIT, Reason.WAITING, load, value=answer.predicted)

    def wait_without_ticket(self, call: Candidate, pool_name: str, now: float) -> Verdict:
        """Let a call that waits go back to where it would be without its ticket.

        Args:
            call: the same, with no ``since``.
            pool_name: where it waits.
            now: the clock's time.
        """
        pool, line = self.pools[pool_name], self.lines[pool_name]
        self.leave(call.id, pool_name, now)
        return self._queue(call, pool, line, pool.load(now), now)

    def prompt_tokens(self, parts: PromptParts, pool_name: str) -> int:
        """Return how many tokens a prompt probably has for this pool's model."""
        return self.pools[pool_name].tokens.estimate(parts)

    def moved(self, exchange: str, pool_name: str, endpoint: str, now: float) -> None:
        """Hear which endpoint really serves an exchange."""
        self.pools[pool_name].moved(exchange, endpoint, now)

    def release(self, exchange: str, pool_name: str) -> None:
        """Give back what an exchange held; harmless where it holds nothing."""
        promise = self.pools[pool_name].release(exchange)
        if promise is not None:
            self._ended[exchange] = promise
            if len(self._ended) > UNSETTLED:
                self._ended.popitem(last=False)

    def output_in(self, exchange: str, pool_name: str, seconds: float) -> float:
        """Return how many tokens an exchange has probably generated in so much time; before `settle`."""
        pool = self.pools[pool_name]
        promise = self._ended.get(exchange) or pool.promise(exchange)
        return 0.0 if promise is None else pool.output_in(promise, seconds)

    def settle(self, exchange: str, pool_name: str, end: End) -> Promise | None:
        """Learn from how an exchange ended; before or after its release, once.

        Returns:
            What the exchange held, where that is still known.
        """
        pool = self.pools[pool_name]
        promise = self._ended.pop(exchange, None) or pool.promise(exchange)
        if promise is not None:
            pool.learn(promise, end)
        return promise


def _waiting(call: Candidate, pool: Pool, now: float) -> Waiting:
    who = call.classification
    return Waiting(
        call.id,
        who.tenant,
        who.service_class,
        _cost(call, pool),
        call.kept_bytes,
        now if call.since is None else call.since,
        ticketed=call.since is not None,
    )


def _cost(call: Candidate, pool: Pool) -> int:
    return token_cost(call.prompt_tokens, pool.output(call.demand))


_NO_KV = frozenset((Reason.KV_WATERMARK, Reason.KV_DEMAND, Reason.PREFILL_BACKLOG))
"""Shortages that the engine's own queue, where a strict class comes first, can wait for as well."""
_NO_ROOM = _NO_KV | {Reason.CONCURRENCY}
"""Shortages that end when others do."""


def _admit(found: Placement, load: Load) -> Verdict:
    endpoint = found.endpoint if found.chosen else None
    return Verdict(Action.ADMIT, Reason.ADMITTED, load, endpoint=endpoint, free=found.free)


def refuse(refusal: Refusal | Shortage | Refused | Shed, load: Load) -> Verdict:
    """Return the verdict that a no leads to."""
    reply = REASONS[refusal.reason].reply
    shed = reply is not None and reply.kind is ReplyKind.FALLBACK
    action = Action.SHED if shed else Action.REJECT
    wait = refusal.retry_after if isinstance(refusal, Refusal) else None
    return Verdict(action, refusal.reason, load, refusal.threshold, refusal.value, retry_after=wait)


def _conclude(end: Dispatch[Placement] | Shed, load: Load) -> Verdict:
    return refuse(end, load) if isinstance(end, Shed) else _admit(end.placement, load)
