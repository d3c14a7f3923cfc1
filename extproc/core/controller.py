"""The decision: gates in order, one verdict out.

Rules this module keeps:

* The first gate that does not pass decides; a gate knows nothing of the others.
* A refused call leaves nothing behind: capacity is taken only when every gate has passed.
* A verdict carries the numbers that decided it, so that it can be explained and replayed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from extproc.core.capacity import Load, Pool, Shortage
from extproc.core.classes import Classification
from extproc.core.outcomes import End
from extproc.core.promises import Demand, Promise
from extproc.core.reasons import REASONS, Reason, ReplyKind
from extproc.core.tokens import PromptParts

UNSETTLED = 4096
"""Exchanges that are over and whose end is not reported yet; of more, the oldest are forgotten."""


class Action(StrEnum):
    """What happens to a call."""

    ADMIT = "admit"
    SHED = "shed"
    REJECT = "reject"
    PASS = "pass"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Candidate:
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
    """

    id: str
    classification: Classification
    prompt_tokens: int
    body_bytes: int
    defect: str | None = None
    max_output: int | None = None
    choices: int = 1
    parts: PromptParts | None = None

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gate's no, with the threshold that was not met and the number held against it."""

    reason: Reason
    threshold: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about a call, and on which numbers.

    ``endpoint`` is where it should go, or None where Envoy chooses. ``free`` is the predicted free
    ratio after it came, or None where it did not come or nothing is known.
    """

    action: Action
    reason: Reason
    load: Load
    threshold: float | None = None
    value: float | None = None
    endpoint: str | None = None
    free: float | None = None


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


@dataclass(frozen=True, slots=True)
class Capacity:
    """Lets in what fits into the engines after everything that is promised; see `Pool.place`."""

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `Gate`."""
        found = pool.place(call.demand, now)
        if isinstance(found, Shortage):
            return Refusal(found.reason, found.threshold, found.value)
        return None


class Controller:
    """Holds the pools and asks the gates."""

    def __init__(self, pools: Mapping[str, Pool], gates: Sequence[Gate]) -> None:
        self.pools = dict(pools)
        self._gates = tuple(gates)
        self._ended: OrderedDict[str, Promise] = OrderedDict()

    def decide(self, call: Candidate, pool_name: str, now: float) -> Verdict:
        """Decide about a call and, where it is admitted, reserve its place until `release`."""
        pool = self.pools[pool_name]
        load = pool.load(now)
        for gate in self._gates:
            refusal = gate(call, pool, now)
            if refusal is not None and not _waits(refusal, call):
                return _refuse(refusal, load)
        found = pool.place(call.demand, now)
        if isinstance(found, Shortage):
            found = pool.squeeze(call.demand, now)
        pool.reserve(call.id, call.demand, found.endpoint, now)
        return Verdict(
            Action.ADMIT,
            Reason.ADMITTED,
            load,
            endpoint=found.endpoint if found.chosen else None,
            free=found.free,
        )

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

    def settle(self, exchange: str, pool_name: str, end: End) -> None:
        """Learn from how an exchange ended; before or after its release, once."""
        pool = self.pools[pool_name]
        promise = self._ended.pop(exchange, None) or pool.promise(exchange)
        if promise is not None:
            pool.learn(promise, end)


def _waits(refusal: Refusal, call: Candidate) -> bool:
    """Say whether the engine's own queue, where a strict class comes first, takes the call."""
    return call.classification.service_class.strict and refusal.reason in _ROOM


_ROOM = frozenset((Reason.KV_WATERMARK, Reason.KV_DEMAND, Reason.PREFILL_BACKLOG))


def _refuse(refusal: Refusal, load: Load) -> Verdict:
    reply = REASONS[refusal.reason].reply
    shed = reply is not None and reply.kind is ReplyKind.FALLBACK
    action = Action.SHED if shed else Action.REJECT
    return Verdict(action, refusal.reason, load, refusal.threshold, refusal.value)
