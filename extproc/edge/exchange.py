"""One HTTP exchange as Envoy shows it to us: a state machine without I/O.

Rules this module keeps:

* Every message of Envoy's gets exactly one reply, of its own phase, whatever order messages come
  in: Envoy waits for it, and an unexpected reply would fail the client's request.
* The gatekeeper is asked once per exchange, when the first request body is there. Its headers
  came before, in a message of their own, or with the body, as attributes.
* The gatekeeper may need time: then the reply to the body comes from `resume`, when it has said so.
  Should Envoy meanwhile go on without us, the wait is over and that reply is owed to nobody.
* What the gatekeeper holds for us, capacity or a place in the queue, is given back in `close` or
  when the wait ends, exactly once, in whatever state.

::

    START ──request headers──► HEADERS ──request body──► FORWARDED ──response headers──► RESPONDING
      └───────────────────────request body──►──┤                 ▲
                                               ├─ later ─► WAITING ──resume──┐
                                               └─ refused ─► ANSWERED ◄──────┘   any ──close──► CLOSED

    WAITING ──response headers──► ANSWERED, by Envoy itself

A message that no arrow shows (trailers, further body parts, a response to a request that never
reached us, as after Envoy's own 413) is continued unchanged and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from extproc.edge.messages import Answer, Continue, Event, Forward, LabelResponse, Phase, Reply


class State(Enum):
    """How far an exchange has come."""

    START = "start"
    HEADERS = "headers"
    WAITING = "waiting"
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
        reply: what Envoy is told, or None where the gatekeeper will say that later.
        hold: what must be released when the exchange ends, or None.
        labels: headers for the engine's response.
    """

    reply: Forward | Answer | None
    hold: tuple[str, str] | None = None
    labels: LabelResponse | None = None


Resolution = Callable[[], Judgement]
"""Makes the judgement that was due; called once, by whoever writes the reply."""


class Gatekeeper(Protocol):
    """Decides about requests and keeps the books of what it let in."""

    def judge(self, request: Request, later: Callable[[Resolution], None]) -> Judgement:
        """Decide about a request.

        Where the judgement has no reply, ``later`` is called once, after this has returned, unless
        the hold is released before.
        """
        ...

    def served(self, hold: tuple[str, str], endpoint: str) -> None:
        """Hear that the engine at ``ip:port`` answers what a judgement let in."""
        ...

    def release(self, hold: tuple[str, str]) -> None:
        """Take back what a judgement held."""
        ...


class Exchange:
    """The state of one exchange; see the module's rules."""

    __slots__ = ("_gatekeeper", "_head", "_hold", "_labels", "_later", "state")

    def __init__(self, gatekeeper: Gatekeeper, later: Callable[[Resolution], None]) -> None:
        """``later`` is given what `resume` needs, while the exchange waits."""
        self.state = State.START
        self._gatekeeper = gatekeeper
        self._later = later
        self._head: Event | None = None
        self._hold: tuple[str, str] | None = None
        self._labels: LabelResponse | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.state.value}, holds {self._hold}>"

    def receive(self, event: Event) -> Reply | None:
        """Take a message from Envoy and return the reply to it; None where `resume` will."""
        phase = event.phase
        if phase is Phase.REQUEST_BODY and self.state in (State.START, State.HEADERS):
            return self._judge(event)
        if phase is Phase.REQUEST_HEADERS and self.state is State.START:
            self.state, self._head = State.HEADERS, event
        elif phase is Phase.RESPONSE_HEADERS and self.state is State.FORWARDED:
            self.state = State.RESPONDING
            if self._hold is not None and event.upstream:
                self._gatekeeper.served(self._hold, event.upstream)
            return self._labels or Continue(phase)
        elif phase is Phase.RESPONSE_HEADERS and self.state is State.WAITING:
            self.state = State.ANSWERED
            self._release()
        return Continue(phase)

    def resume(self, resolution: Resolution) -> Reply:
        """End the wait and return the reply to the body; only while the exchange waits."""
        reply = self._apply(resolution())
        if reply is None:
            raise RuntimeError("the gatekeeper may ask for time once")
        return reply

    def close(self) -> None:
        """End the exchange, because Envoy closed the stream or it was cancelled; idempotent."""
        self.state = State.CLOSED
        self._release()

    def _release(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._gatekeeper.release(hold)

    def _judge(self, event: Event) -> Reply | None:
        # Envoy asks for attributes with the first message it sends; a headers message says the same.
        head = self._head or event
        judgement = self._gatekeeper.judge(
            Request(head.path, head.request_id, head.headers, head.metadata, event.body),
            self._later,
        )
        self._head = None
        return self._apply(judgement)

    def _apply(self, judgement: Judgement) -> Reply | None:
        self._hold, self._labels = judgement.hold, judgement.labels
        reply = judgement.reply
        if reply is None:
            self.state = State.WAITING
        else:
            self.state = State.ANSWERED if isinstance(reply, Answer) else State.FORWARDED
        return reply
