"""What is reported to telemetry: a record per decision, and one per end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from extproc.core.controller import Candidate, Verdict
from extproc.core.outcomes import Outcome

NO_TRACE = ("", "")
"""Of a call without a trace context, and of all where nothing is traced."""


class Decided(msgspec.Struct, frozen=True, gc=False):
    """One verdict, with what is needed to explain it. Never a prompt or a key.

    Attributes:
        id: the exchange's id.
        request_id: Envoy's ``x-request-id``, or "".
        pool: the pool that was asked for.
        endpoint: which API was called, such as ``chat``.
        tenant, service_class, task: the classification.
        prompt_tokens: estimated.
        max_output: tokens per choice that the engine may generate, or None where unlimited.
        verdict: the action, the reason and the numbers.
        seconds: how long the decision took.
        shadow: it was decided so and not done.
        call: what was decided about, with notes of what was seen; None where nobody wants them.
        waited: how long it had waited, or None where it was decided when it came.
        run, run_task, run_parent: the agent's run that the call is part of, its task there, and the
            task that this was split off from, as the caller names them; "" where it does not.
        by_envoy: the flood valve refused it; one of many that are counted elsewhere.
        trace: the caller's W3C context, ``traceparent`` and ``tracestate``, where calls are traced.
    """

    id: str
    request_id: str
    pool: str
    endpoint: str
    tenant: str
    service_class: str
    task: str
    prompt_tokens: int
    max_output: int | None
    verdict: Verdict
    seconds: float
    shadow: bool = False
    call: Candidate | None = None
    waited: float | None = None
    run: str = ""
    run_task: str = ""
    run_parent: str = ""
    trace: tuple[str, str] = NO_TRACE
    by_envoy: bool = False


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How an admitted exchange ended, by Envoy's access log; None where it does not tell.

    Attributes:
        id: the exchange's id.
        tenant, service_class, pool: as decided.
        outcome: how it ended.
        prompt_tokens, completion_tokens: as the engine reported them.
        seconds: from the first byte of the request to the last of the response.
    """

    id: str
    tenant: str
    service_class: str
    pool: str
    outcome: Outcome
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float


class WaitEnd(StrEnum):
    """How a wait in the queue ended."""

    ADMITTED = "admitted"
    SHED = "shed"
    LEFT = "left"
    """The client did not wait."""


class Observer(Protocol):
    """Hears of every decision and every end; must not block."""

    def decided(self, record: Decided) -> None:
        """A verdict was given."""
        ...

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        """A call has left the queue."""
        ...

    def ended(self, record: Ended) -> None:
        """An admitted exchange is over."""
        ...


@dataclass(frozen=True, slots=True)
class Observers:
    """Several observers as one; each hears of everything, in order."""

    each: tuple[Observer, ...]

    def decided(self, record: Decided) -> None:
        """A verdict was given."""
        for observer in self.each:
            observer.decided(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        """A call has left the queue."""
        for observer in self.each:
            observer.waited(pool, service_class, end, seconds)

    def ended(self, record: Ended) -> None:
        """An admitted exchange is over."""
        for observer in self.each:
            observer.ended(record)
