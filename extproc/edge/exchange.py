"""One HTTP exchange as Envoy shows it to us: a state machine without I/O.

Rules this module keeps:

* Every message of Envoy's gets exactly one reply, of its own phase, whatever order messages come
  in: Envoy waits for it, and an unexpected reply would fail the client's request.
* The gatekeeper is asked once per exchange, when the first request body is there. Its headers
  came before, in a message of their own, or with the body, as attributes.
* What the gatekeeper reserved is given back in `close`, exactly once, in whatever state.

::

    START ──request headers──► HEADERS ──request body──► FORWARDED ──response headers──► RESPONDING
      └───────────────────────request body──►──┘ │
                                                 └─ refused ─► ANSWERED          any ──close──► CLOSED

A message that no arrow shows (trailers, further body parts, a response to a request that never
reached us, as after Envoy's own 413) is continued unchanged and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from extproc.edge.messages import Answer, Continue, Event, Forward, LabelResponse, Phase, Reply


class State(Enum):
    """How far an exchange has come."""

    START = "start"
    HEADERS = "headers"
    FORWARDED = "forwarded"
    RESPONDING = "responding"
    ANSWERED = "answered"
    CLOSED = "closed"


@dataclass(slots=True)
class Request:
    """A whole request, as the gatekeeper judges it."""

    path: str
    request_id: str
    headers: Mapping[str, str]
    metadata: Mapping[str, object]
    body: bytes


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gatekeeper says of a request.

    Attributes:
        reply: what Envoy is told.
        hold: what must be released when the exchange ends, or None.
        labels: headers for the engine's response.
    """

    reply: Forward | Answer
    hold: tuple[str, str] | None = None
    labels: LabelResponse | None = None


class Gatekeeper(Protocol):
    """Decides about requests and keeps the books of what it let in."""

    def judge(self, request: Request) -> Judgement:
        """Decide about a request."""
        ...

    def release(self, hold: tuple[str, str]) -> None:
        """Take back what a judgement held."""
        ...


class Exchange:
    """The state of one exchange; see the module's rules."""

    __slots__ = ("_gatekeeper", "_head", "_hold", "_labels", "state")

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self.state = State.START
        self._gatekeeper = gatekeeper
        self._head: Event | None = None
        self._hold: tuple[str, str] | None = None
        self._labels: LabelResponse | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.state.value}, holds {self._hold}>"

    def receive(self, event: Event) -> Reply:
        """Take a message from Envoy and return the reply to it."""
        phase = event.phase
        if phase is Phase.REQUEST_BODY and self.state in (State.START, State.HEADERS):
            return self._judge(event)
        if phase is Phase.REQUEST_HEADERS and self.state is State.START:
            self.state, self._head = State.HEADERS, event
        elif phase is Phase.RESPONSE_HEADERS and self.state is State.FORWARDED:
            self.state = State.RESPONDING
            return self._labels or Continue(phase)
        return Continue(phase)

    def close(self) -> None:
        """End the exchange, because Envoy closed the stream or it was cancelled; idempotent."""
        self.state = State.CLOSED
        hold, self._hold = self._hold, None
        if hold is not None:
            self._gatekeeper.release(hold)

    def _judge(self, event: Event) -> Reply:
        # Envoy asks for attributes with the first message it sends; a headers message says the same.
        head = self._head or event
        judgement = self._gatekeeper.judge(
            Request(head.path, head.request_id, head.headers, head.metadata, event.body)
        )
        self._head = None
        self._hold, self._labels = judgement.hold, judgement.labels
        answered = isinstance(judgement.reply, Answer)
        self.state = State.ANSWERED if answered else State.FORWARDED
        return judgement.reply
