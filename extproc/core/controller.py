"""The decision: gates in order, one verdict out.

Rules this module keeps:

* The first gate that does not pass decides; a gate knows nothing of the others.
* A refused call leaves nothing behind: capacity is taken only when every gate has passed.
* A verdict carries the numbers that decided it, so that it can be explained and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from extproc.core.capacity import Load, Pool
from extproc.core.classes import Classification, ServiceClass
from extproc.core.reasons import REASONS, Reason, ReplyKind


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
    """

    id: str
    classification: Classification
    prompt_tokens: int
    body_bytes: int
    defect: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gate's no, with the threshold that was not met and the number held against it."""

    reason: Reason
    threshold: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about a call, and on which numbers."""

    action: Action
    reason: Reason
    load: Load
    threshold: float | None = None
    value: float | None = None


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
    """Sheds by the observed free ratio and by what is in flight: the plain rules of the field.

    A strict class passes as long as there is an endpoint to send it to.
    """

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `Gate`."""
        if not pool.endpoints:
            return Refusal(Reason.NO_ENDPOINT)
        service_class = call.classification.service_class
        if service_class.strict:
            return None
        if pool.is_closed(service_class, now):
            return _closed(service_class, pool.load(now))
        limit = pool.concurrency_limit(service_class)
        if pool.in_flight >= limit:
            return Refusal(Reason.CONCURRENCY, limit, pool.in_flight)
        return None


def _closed(service_class: ServiceClass, load: Load) -> Refusal:
    """Name the mark that the free ratio must pass: once closed, that is the upper one."""
    close, reopen = service_class.close * load.tightening, service_class.open * load.tightening
    below = load.free is not None and load.free < close
    return Refusal(Reason.KV_WATERMARK, close if below else reopen, load.free)


class Controller:
    """Holds the pools and asks the gates."""

    def __init__(self, pools: Mapping[str, Pool], gates: Sequence[Gate]) -> None:
        self.pools = dict(pools)
        self._gates = tuple(gates)

    def decide(self, call: Candidate, pool_name: str, now: float) -> Verdict:
        """Decide about a call and, where it is admitted, reserve its place until `release`."""
        pool = self.pools[pool_name]
        load = pool.load(now)
        for gate in self._gates:
            refusal = gate(call, pool, now)
            if refusal is not None:
                return _refuse(refusal, load)
        pool.reserve(call.id)
        return Verdict(Action.ADMIT, Reason.ADMITTED, load)

    def release(self, exchange: str, pool_name: str) -> None:
        """Give back what an exchange held; harmless where it holds nothing."""
        self.pools[pool_name].release(exchange)


def _refuse(refusal: Refusal, load: Load) -> Verdict:
    reply = REASONS[refusal.reason].reply
    shed = reply is not None and reply.kind is ReplyKind.FALLBACK
    action = Action.SHED if shed else Action.REJECT
    return Verdict(action, refusal.reason, load, refusal.threshold, refusal.value)
