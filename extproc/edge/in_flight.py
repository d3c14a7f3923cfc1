"""What is known of each admitted exchange until it ends, and what becomes of its answer.

Rules this module keeps:

* An answer that only says "not now", the engine's or Envoy's in its stead, becomes the fallback, while
  nothing of it was passed on. What the caller did wrong (4xx) passes as the engine says it.
* Only bodies that we must see come through this process: those that a task stops early, those that
  may be cut, and those whose usage nobody else reads, as where they are encoded. All others pass
  without us.
* Whether an exchange may be cut is settled when it is admitted: where most of the pool is free, it
  is not, and costs nothing.
* A cut exchange gets the fallback if the engine has not answered. A stream is ended with its next
  part, so that its client takes it for whole; where it cannot be ended well, it goes on.
* Of the request only what an answer has to do with is kept, never its body.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from extproc import contract
from extproc.core.classes import Classification
from extproc.core.controller import Action, Controller, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.core.tickets import Subject
from extproc.edge.endings import Endings
from extproc.edge.exchange import Editor, Judgement
from extproc.edge.messages import Answer, Event
from extproc.edge.responder import Case, Responder
from extproc.edge.ticket_desk import TicketDesk, subject_of
from extproc.openai.calls import Call
from extproc.openai.endpoints import Endpoint
from extproc.openai.rewriting import surplus_stop
from extproc.openai.sse import SSE
from extproc.openai.streams import Asked, EarlyStop, Edit, open_editor
from extproc.openai.streams import Editor as StreamEditor

PRESSED = 0.5
"""Where less of a pool than this is free, of its predicted KV cache or of its concurrency, a call of
an evictable class is prepared to be cut. Elsewhere that would cost, and hardly ever be of use: the
newest calls are cut first."""
_NEVER = EarlyStop()
_ENGINES_OWN = "via_upstream"
"""What Envoy says of an answer that is not of its own making."""


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What is done about answers.

    Attributes:
        replaced: HTTP statuses, as text, that become the fallback.
        read_usage: the token usage is read here, not by Envoy's own filters.
        reported: takes what engines tell of their load beside an answer: pool, endpoint, header.
    """

    replaced: frozenset[str] = frozenset()
    read_usage: bool = False
    reported: Callable[[str, str, str], None] | None = None


UNTOUCHED = AnswerRules()
"""Answers pass as they come."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What a reply must know of a call; see `extproc.openai.replies.Addressee`."""

    endpoint: Endpoint
    model: str
    stream: bool
    include_usage: bool
    structured: bool


@dataclass(slots=True)
class Flight:
    """One admitted exchange.

    Attributes:
        case: the request, without its body.
        verdict: by which it was admitted.
        kept: what a reply must know of the call; None where it could not be read.
        asked: what an editor must know of it, where its answer is to be edited.
        early_stop: what ends its answer before the engine would.
        revocable: it may be cut.
        subject: for its ticket, if so.
        answered: the engine has.
        editor: edits its answer.
        cutting: it was chosen to be cut.
    """

    case: Case
    verdict: Verdict
    kept: Kept | None
    asked: Asked | None = None
    early_stop: EarlyStop = _NEVER
    revocable: bool = False
    subject: Subject | None = None
    answered: bool = False
    editor: StreamEditor | None = None
    cutting: bool = False

    @property
    def cuttable(self) -> bool:
        """Whether it can be ended well at this moment."""
        if not self.revocable or self.cutting:
            return False
        if not self.answered:
            return True
        structured = self.kept is not None and self.kept.structured
        return self.editor is not None and self.editor.cuttable and not structured


class InFlight:
    """The admitted exchanges; contains the ids of those that can be cut well at this moment.

    ``rules`` may be replaced at any time.
    """

    def __init__(
        self,
        *,
        rules: AnswerRules,
        controller: Controller,
        responder: Responder,
        endings: Endings,
        tickets: TicketDesk,
    ) -> None:
        self.rules = rules
        self._controller = controller
        self._responder = responder
        self._endings = endings
        self._tickets = tickets
        self._flights: dict[str, Flight] = {}
        self._revocable = 0

    def __contains__(self, exchange: object) -> bool:
        flight = self._flights.get(exchange) if isinstance(exchange, str) else None
        return flight is not None and flight.cuttable

    def enter(self, case: Case, verdict: Verdict) -> bool:
        """Take an exchange in that was just admitted; say whether it may be cut.

        The body of the request is dropped here.
        """
        call, case.call = case.call, None
        if call is None:
            self._flights[case.candidate.id] = Flight(case, verdict, None)
            return False
        kept = Kept(call.endpoint, call.model, call.stream, call.include_usage, call.structured)
        flight = self._flights[case.candidate.id] = Flight(case, verdict, kept)
        who = case.candidate.classification
        flight.revocable = who.service_class.evictable and self._pressed(case.pool, verdict)
        if flight.revocable:
            flight.subject = subject_of(call, who)
            self._revocable += 1
        if call.stream:
            flight.early_stop = _early_stop(who, call)
        edited = flight.revocable or flight.early_stop
        if self.rules.read_usage or (call.stream and edited):
            flight.asked = Asked.by(call)
        return flight.revocable

    def evict(self, pool: str, now: float) -> None:
        """Cut what has to make room; to be called after calls have gone, and after scrapes."""
        if self._revocable:
            for exchange in self._controller.evictions(pool, now, self):
                self.cut(exchange)

    def cut_classes(self, names: Container[str]) -> int:
        """Cut whatever can be ended well of these classes; return how many exchanges that is."""
        chosen = [
            exchange
            for exchange, flight in self._flights.items()
            if flight.cuttable and flight.case.candidate.classification.service_class.name in names
        ]
        for exchange in chosen:
            self.cut(exchange)
        return len(chosen)

    def leave(self, exchange: str) -> None:
        """Forget an exchange that is over."""
        flight = self._flights.pop(exchange, None)
        if flight is not None and flight.revocable:
            self._revocable -= 1

    def answered(self, exchange: str, event: Event) -> Answer | Editor | None:
        """Hear how an exchange is answered; see `extproc.edge.exchange.Gatekeeper`."""
        flight = self._flights.get(exchange)
        if flight is None:
            return None
        flight.answered = True
        report = event.headers.get(contract.LOAD_REPORT)
        if report is not None and self.rules.reported is not None:
            self.rules.reported(flight.case.pool, event.upstream, report)
        if flight.cutting:
            return self._instead(flight, Reason.EVICTED, Outcome.EVICTED)
        status = event.headers.get(":status", "")
        if status in self.rules.replaced:
            return self._instead(flight, *_failure(status, event.details))
        if event.end_of_stream:
            return None
        encoding = event.headers.get("content-encoding", "")
        asked = flight.asked
        if asked is None and encoding and flight.kept is not None:
            asked = Asked(flight.kept.endpoint)  # enough to read the usage, which Envoy cannot
        return None if asked is None else self._edited(flight, asked, event.headers, encoding)

    def cut(self, exchange: str) -> None:
        """End an exchange as soon as it can be ended well; harmless where it is over."""
        flight = self._flights.get(exchange)
        if flight is None or not flight.revocable or flight.cutting:
            return
        flight.cutting = True
        if not flight.answered:
            flight.case.later(partial(self._revoked, flight))

    def _pressed(self, pool: str, verdict: Verdict) -> bool:
        most = self._controller.pools[pool].limits.max_concurrency
        free = verdict.free
        return free is None or free < PRESSED or verdict.load.in_flight > (1 - PRESSED) * most

    def _revoked(self, flight: Flight) -> Judgement:
        answer = self._instead(flight, Reason.EVICTED, Outcome.EVICTED)
        return Judgement(answer, hold=(flight.case.candidate.id, flight.case.pool))

    def _instead(self, flight: Flight, reason: Reason, outcome: Outcome) -> Answer:
        """Return the answer in place of the engine's."""
        self._endings.known(flight.case.candidate.id, outcome)
        return self._responder.refusal(*self._refused(flight, reason))

    def _edited(
        self, flight: Flight, asked: Asked, headers: Mapping[str, str], encoding: str
    ) -> Editor | None:
        content_type = headers.get("content-type", "")
        is_stream = content_type.partition(";")[0].strip().lower() == SSE
        if not (is_stream or encoding or self.rules.read_usage):
            return None
        editor = open_editor(
            asked,
            content_type=content_type,
            content_encoding=encoding,
            early_stop=flight.early_stop,
            strip_usage=not asked.include_usage,  # then it was asked for by us
        )
        flight.editor = editor
        self._endings.metered(flight.case.candidate.id, editor)
        return _Cuttable(editor, flight, self._ended) if flight.revocable else editor

    def _ended(self, flight: Flight, editor: StreamEditor) -> Edit | None:
        """End a stream that is to be cut, if that can be done well."""
        edit = editor.cut(self._responder.ending(*self._refused(flight, Reason.EVICTED)))
        if edit is not None:
            self._endings.known(flight.case.candidate.id, Outcome.EVICTED)
        return edit

    def _refused(
        self, flight: Flight, reason: Reason
    ) -> tuple[Case, Verdict, str | None, Kept | None]:
        """Return what makes the refusal of a call that had been admitted."""
        ticket = (
            None if flight.subject is None else self._tickets.issue(flight.case, flight.subject)
        )
        verdict = Verdict(Action.SHED, reason, flight.verdict.load)
        return flight.case, verdict, ticket, flight.kept


class _Cuttable:
    """An editor of a stream that may be cut: at the next part that comes."""

    def __init__(
        self,
        editor: StreamEditor,
        flight: Flight,
        cut: Callable[[Flight, StreamEditor], Edit | None],
    ) -> None:
        self._editor = editor
        self._flight = flight
        self._cut = cut

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """See `extproc.edge.exchange.Editor`."""
        if self._flight.cutting and self._editor.cuttable:
            edit = self._cut(self._flight, self._editor)
            if edit is not None:
                return edit
        return self._editor.feed(chunk, end=end)

    @property
    def unsent(self) -> bytes:
        """See `extproc.edge.exchange.Editor`."""
        return self._editor.unsent


def _early_stop(who: Classification, call: Call) -> EarlyStop:
    """Return what ends a stream early; stop sequences only where the engine does not know them."""
    if not (who.stop_on or who.stop):
        return _NEVER
    return EarlyStop.on(who.stop_on, surplus_stop(call, who.stop) if who.stop else ())


def _failure(status: str, details: str) -> tuple[Reason, Outcome]:
    """Return why an answer is replaced, and how its exchange has ended."""
    if status == "504":
        return Reason.ENGINE_TIMEOUT, Outcome.TIMEOUT
    if status == "503" and details == _ENGINES_OWN:
        return Reason.ENGINE_REJECTED, Outcome.ENGINE_REJECTED
    return Reason.ENGINE_ERROR, Outcome.ENGINE_ERROR
