"""One HTTP exchange as Envoy shows it to us: a state machine without I/O.

Rules this module keeps:

* Every message of Envoy's gets exactly one reply, of its own phase, whatever order messages come
  in: Envoy waits for it, and an unexpected reply would fail the client's request. Only the parts of
  a response that we asked for may go without: there Envoy waits for nothing, but it does not allow
  a reply before the first part has come.
* The gatekeeper is asked once per exchange, when the first request body is there. Its headers
  came before, in a message of their own, or with the body, as attributes.
* The gatekeeper may need time: then the reply to the body comes from `resume`, when it has said so.
  Should Envoy meanwhile go on without us, the wait is over and that reply is owed to nobody.
* An admitted request may be answered by us after all, by `resume`, until the engine answers; and
  the engine's answer may be replaced while only its headers are there. After that all that can be
  done is to edit its body, for which the gatekeeper has to ask when it sees the headers.
* Once a response was ended by us nothing more is said of it, whatever still comes.
* A fault of ours ends no exchange: a request without a verdict gets what the gatekeeper declares for that,
  a response goes on as the engine gives it, from the first byte that was not passed on.
* What the gatekeeper holds for us, capacity or a place in the queue, is given back in `close` or
  when the wait ends, exactly once, in whatever state.

::

    START ──request headers──► HEADERS ──request body──► FORWARDED ──response headers──► RESPONDING
      └───────────────────────request body──►──┤          ▲  │  │
                                               │          │  │  └─ to be edited ─► EDITING ──end──► ENDED
                                               ├─ later ─► WAITING ──resume──┐
                                               │             │              │
                                               └─ refused ─► ANSWERED ◄─────┴─ cut, replaced ── FORWARDED

    WAITING ──response headers──► ANSWERED, by Envoy itself          any ──close──► CLOSED

A message that no arrow shows (trailers, further body parts, a response to a request that never
reached us, as after Envoy's own 413) is continued unchanged and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

import msgspec

from extproc.core.faults import Place
from extproc.edge.messages import (
    Answer,
    Continue,
    Event,
    Extend,
    Forward,
    LabelResponse,
    Phase,
    Reply,
    Stream,
)


class State(Enum):
    """How far an exchange has come."""

    START = "start"
    HEADERS = "headers"
    WAITING = "waiting"
    FORWARDED = "forwarded"
    RESPONDING = "responding"
    EDITING = "editing"
    ENDED = "ended"
    ANSWERED = "answered"
    CLOSED = "closed"


class Request(msgspec.Struct, gc=False):
    """A whole request, as the gatekeeper judges it."""

    path: str
    request_id: str
    headers: Mapping[str, str]
    metadata: Mapping[str, object]
    body: bytes


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """What the gatekeeper says of a request.

    Attributes:
        reply: what Envoy is told, or None where the gatekeeper will say that later; `Extend` where
            that may take longer than Envoy would wait.
        hold: what must be released when the exchange ends, or None.
        labels: headers for the engine's response.
        revocable: the request may still be answered by us while the engine has not answered it.
    """

    reply: Forward | Answer | Extend | None
    hold: tuple[str, str] | None = None
    labels: LabelResponse | None = None
    revocable: bool = False


Resolution = Callable[[], Judgement]
"""Makes the judgement that was due, or takes one back; called once, by whoever writes the reply."""


class Edit(Protocol):
    """What becomes of a part of a response's body."""

    @property
    def data(self) -> bytes:
        """What the client gets in its place; empty for nothing yet."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the response ends here, even if the engine goes on."""
        ...


class Editor(Protocol):
    """Edits a response's body as it passes."""

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """Take the next part, the last one where ``end`` is set."""
        ...

    @property
    def unsent(self) -> bytes:
        """What `feed` had taken and not passed on when it last returned: it may still be sent."""
        ...


class Gatekeeper(Protocol):
    """Decides about requests and keeps the books of what it let in."""

    def judge(self, request: Request, later: Callable[[Resolution], None]) -> Judgement:
        """Decide about a request.

        Where the judgement has no reply, ``later`` is called once, after this has returned, unless
        the hold is released before. Where it can be revoked, ``later`` may be called once more.
        """
        ...

    def answered(self, hold: tuple[str, str], event: Event) -> Answer | Editor | None:
        """Hear how what was let in is answered: the response's headers.

        Returns:
            What the client gets instead, or who edits the body, or None to leave it as it is.
        """
        ...

    def release(self, hold: tuple[str, str]) -> None:
        """Take back what a judgement held."""
        ...

    def failed(self, place: Place, error: Exception, path: str) -> Forward | Answer:
        """Hear of a fault of ours; return what is declared for a request that has no verdict."""
        ...


class Unedited(msgspec.Struct, frozen=True, gc=False):
    """The `Edit` that changes nothing."""

    data: bytes
    finished: bool = False


class _Unchanging:
    """The `Editor` that changes nothing."""

    unsent = b""

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        return Unedited(chunk)


_UNCHANGED = _Unchanging()
_UNJUDGED = (State.START, State.HEADERS)
_REQUEST = (Phase.REQUEST_HEADERS, Phase.REQUEST_BODY)


class Exchange:
    """The state of one exchange; see the module's rules."""

    __slots__ = (
        "_editor",
        "_gatekeeper",
        "_head",
        "_hold",
        "_labels",
        "_later",
        "_path",
        "_revocable",
        "state",
    )

    def __init__(self, gatekeeper: Gatekeeper, later: Callable[[Resolution], None]) -> None:
        """``later`` is given what `resume` needs, while the exchange waits."""
        self.state = State.START
        self._gatekeeper = gatekeeper
        self._later = later
        self._head: Event | None = None
        self._hold: tuple[str, str] | None = None
        self._labels: LabelResponse | None = None
        self._revocable = False
        self._editor: Editor | None = None
        self._path = ""

    def __repr__(self) -> str:
        return f"<Exchange {self.state.value}, holds {self._hold}>"

    @property
    def listens(self) -> bool:
        """Whether `resume` may have something to say before Envoy has."""
        state = self.state
        return state is State.WAITING or (state is State.FORWARDED and self._revocable)

    def receive(self, event: Event) -> Reply | None:
        """Take a message from Envoy and return the reply to it; None for none, or none yet."""
        phase = event.phase
        if phase is Phase.RESPONSE_BODY and self._editor is not None:
            return self._edit(self._editor, event)
        if phase is Phase.REQUEST_BODY and self.state in (State.START, State.HEADERS):
            return self._judge(event)
        if phase is Phase.REQUEST_HEADERS and self.state is State.START:
            self.state, self._head = State.HEADERS, event
        elif phase is Phase.RESPONSE_HEADERS and self.state is State.FORWARDED:
            return self._respond(event)
        elif phase is Phase.RESPONSE_HEADERS and self.state is State.WAITING:
            self.state = State.ANSWERED
            self._release()
        elif phase is Phase.REQUEST_BODY and self.state is State.WAITING:
            return None  # once more; going on would lead past the queue
        return Continue(phase)

    def resume(self, resolution: Resolution) -> Reply | None:
        """End the wait, or revoke the judgement; return what to say, if anything.

        Only while it `listens`.
        """
        try:
            judgement = resolution()
            if judgement.reply is None:
                raise RuntimeError("the gatekeeper may ask for time once")
        except Exception as error:
            return self.fail(Place.CONCLUDE, error)
        return self._apply(judgement)

    def fail(self, place: Place, error: Exception, phase: Phase | None = None) -> Reply | None:
        """Return the reply to a message, or to a wait, for which a fault of ours has left none.

        What was admitted goes on; what was not gets what is declared for it. None where nobody waits.
        """
        declared = self._gatekeeper.failed(place, error, self._path)
        if self.state is State.WAITING or (phase in _REQUEST and self.state in _UNJUDGED):
            return self._declare(declared, phase)
        self._revocable = False
        return None if phase is None else Continue(phase)

    def withdraw(self, error: Exception, phase: Phase | None) -> Reply:
        """Return what is said in place of a reply that a fault of ours made impossible to write."""
        declared = self._gatekeeper.failed(Place.ENCODE, error, self._path)
        if phase is None or phase in _REQUEST:
            return self._declare(declared, phase)
        self.state = State.RESPONDING
        return Continue(phase)

    def _declare(self, declared: Forward | Answer, phase: Phase | None) -> Reply:
        self._release()
        self._apply(Judgement(declared))
        passes = isinstance(declared, Forward)
        return Continue(phase) if passes and phase is Phase.REQUEST_HEADERS else declared

    def close(self) -> None:
        """End the exchange, because Envoy closed the stream or it was cancelled; idempotent."""
        self.state = State.CLOSED
        self._release()

    def _respond(self, event: Event) -> Reply:
        self.state = State.RESPONDING
        labels = self._labels
        reaction = None if self._hold is None else self._reaction(self._hold, event)
        if reaction is None:
            return labels or Continue(Phase.RESPONSE_HEADERS)
        if isinstance(reaction, Answer):
            self.state = State.ANSWERED
            return reaction
        self.state, self._editor = State.EDITING, reaction
        if labels is None:
            return LabelResponse(stream=True)
        return LabelResponse(labels.set_headers, True, labels.unique_headers)

    def _reaction(self, hold: tuple[str, str], event: Event) -> Answer | Editor | None:
        try:
            return self._gatekeeper.answered(hold, event)
        except Exception as error:
            self._gatekeeper.failed(Place.ANSWER, error, self._path)
            return None

    def _edit(self, editor: Editor, event: Event) -> Stream | None:
        if self.state is not State.EDITING:
            return None
        try:
            edit = editor.feed(event.body, end=event.end_of_stream)
        except Exception as error:
            self._gatekeeper.failed(Place.EDIT, error, self._path)
            edit, self._editor = Unedited(editor.unsent + event.body), _UNCHANGED
        end = edit.finished or event.end_of_stream
        if end:
            self.state = State.ENDED
        return Stream(edit.data, end) if edit.data or end else None

    def _release(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            try:
                self._gatekeeper.release(hold)
            except Exception as error:
                self._gatekeeper.failed(Place.RELEASE, error, self._path)

    def _judge(self, event: Event) -> Reply | None:
        # Envoy asks for attributes with the first message it sends; a headers message says the same.
        head = self._head or event
        self._path, self._head = head.path, None
        request = Request(head.path, head.request_id, head.headers, head.metadata, event.body)
        try:
            judgement = self._gatekeeper.judge(request, self._later)
        except Exception as error:
            return self.fail(Place.JUDGE, error, Phase.REQUEST_BODY)
        return self._apply(judgement)

    def _apply(self, judgement: Judgement) -> Reply | None:
        self._hold, self._labels = judgement.hold, judgement.labels
        self._revocable = judgement.revocable
        reply = judgement.reply
        if reply is None or isinstance(reply, Extend):
            self.state = State.WAITING
        else:
            self.state = State.ANSWERED if isinstance(reply, Answer) else State.FORWARDED
        return reply
