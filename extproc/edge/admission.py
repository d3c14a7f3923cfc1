"""The gatekeeper: from a request to the judgement about it, at once or when its turn comes.

One request meets, in this order: who is calling (`identity`), what the body means
(`extproc.openai`), class and limits (`extproc.core.classes`), its ticket
(`extproc.core.tickets`), the gates and the queue (`extproc.core.controller`), and what follows
(`responder`).

Rules this module keeps:

* What is not an inference call passes untouched and is not counted.
* A model that no pool names is decided by the default pool, because that is where Envoy's default
  route sends it: leaving the model out, or inventing one, is no way around the gates.
* A refused call leaves nothing behind but its ticket, and one that a fault of ours ends nothing.
* A call with a payer pays when it goes (`extproc.core.metering`), after every gate and the queue have
  said yes; where it cannot, it gives its place back and is refused.
* In ``shadow`` mode a verdict is made and recorded, and the call passes untouched all the same: it
  waits for nothing and pays nothing. It is counted in, because the engine has it.
* The replies to calls that have waited are made where they are written, not in `pump`: one that
  fails takes no other along, and many at once do not hold up the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial

from msgspec.structs import replace

from extproc import contract
from extproc.core.breaker import Breaker, key_of
from extproc.core.classes import Catalog
from extproc.core.controller import (
    Action,
    Candidate,
    Controller,
    Gate,
    Refusal,
    Verdict,
    refuse,
)
from extproc.core.faults import Place
from extproc.core.metering import Meter, Taking
from extproc.core.reasons import Reason
from extproc.core.records import NO_TRACE, Observer, WaitEnd
from extproc.core.standing import Notes
from extproc.edge.agents import AgentDesk, Arrival
from extproc.edge.endings import Endings
from extproc.edge.exchange import Editor, Judgement, Request, Resolution
from extproc.edge.faults import FaultDesk, failing
from extproc.edge.identity import identify
from extproc.edge.in_flight import InFlight
from extproc.edge.lengths import clamped, max_output
from extproc.edge.messages import Answer, Event, Extend, Forward
from extproc.edge.reports import decided, level_headers, trace_of
from extproc.edge.responder import Case, Responder
from extproc.edge.sharing import Shared
from extproc.edge.terms import Terms
from extproc.edge.ticket_desk import Claims, TicketDesk
from extproc.openai.endpoints import Endpoint, endpoint_of
from extproc.openai.rate_headers import Headers
from extproc.openai.requests import Call, Unreadable, read

PASS = Judgement(Forward())
_AFTER_FAULT = 0.05
"""Seconds until the next turn, after one that a fault of ours has ended."""


class Admission:
    """Judges requests; an `extproc.edge.exchange.Gatekeeper`.

    ``bell`` is rung when `pump` may have something to do.
    """

    def __init__(
        self,
        *,
        terms: Terms,
        controller: Controller,
        max_body: int,
        pass_unreadable: bool,
        observer: Observer,
        endings: Endings,
        meter: Meter | None = None,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        bell: Callable[[], None],
        breaker: Breaker | None = None,
        desk: AgentDesk | None = None,
        claims: Claims | None = None,
        longest_wait: float = 0.0,
        faults: FaultDesk | None = None,
    ) -> None:
        self._catalog = terms.catalog
        self._controller = controller
        self._routing = terms.routing
        self._sources = tuple(terms.sources)
        self._responder = Responder(
            routing=terms.routing,
            reply_rules=terms.reply_rules,
            wording=terms.wording,
            wall_clock=wall_clock,
        )
        self._max_body = max_body
        self._pass_unreadable = pass_unreadable
        self._observer = observer
        self._endings = endings
        self._meter = meter
        self._new_id = new_id
        self._clock = clock
        self._wall_clock = wall_clock
        self._bell = bell
        self._breaker = breaker
        self._desk = desk
        self._faults = faults or FaultDesk()
        self._tickets = TicketDesk(controller, clock, wall_clock, claims, self._lose_ticket)
        self._in_flight = InFlight(
            rules=terms.answers,
            controller=controller,
            responder=self._responder,
            endings=endings,
            tickets=self._tickets,
        )
        self._extension = Extend(longest_wait)
        self._waiting: dict[str, tuple[Case, Callable[[Resolution], None]]] = {}
        self._paying: set[str] = set()
        self.shadow = False
        """Decide and record, and do not act."""
        self.noting = False
        """Take down what decisions see."""
        self.tracing = False
        """Keep callers' trace contexts."""

    def judge(self, request: Request, later: Callable[[Resolution], None]) -> Judgement:
        """Decide about a request; see `extproc.edge.exchange.Gatekeeper`."""
        endpoint = endpoint_of(request.path)
        if endpoint is None:
            return PASS
        now = self._clock()
        call, defect = self._read(endpoint, request)
        if call is not None:
            endpoint = call.endpoint  # of a path that serves several, the body has told which
        pool = self._routing.pool(call.model if call else "")
        if pool is None:
            return PASS
        claim, member = identify(self._sources, request), None
        if self._desk is not None and call is not None:
            member = self._desk.member(request.headers, call, claim)
        classification = self._catalog.classify(
            claim,
            task=request.headers.get(contract.TASK_HEADER, ""),
            path=request.path.partition("?")[0],
            model=call.model if call else "",
            root=None if self._desk is None or member is None else self._desk.root_class(member),
        )
        if self._breaker is not None and not self._breaker.idle:
            limit = self._breaker.limit(key_of(pool, classification), now)
            classification = clamped(classification, limit)
        token = request.headers.get(contract.TICKET_HEADER, "")
        ident, tickets = self._new_id(), self._tickets
        since = tickets.first_came(ident, call, classification, pool, token, now) if call else None
        ticketed = since is not None
        if not ticketed and self._desk is not None and member is not None:
            since = self._desk.began(member)
        candidate = Candidate(
            id=ident,
            classification=classification,
            prompt_tokens=self._controller.prompt_tokens(call.prompt_parts, pool) if call else 0,
            body_bytes=len(request.body),
            defect=defect.message if defect and (call or not self._pass_unreadable) else None,
            max_output=max_output(call, classification),
            choices=call.choices if call else 1,
            parts=call.prompt_parts if call else None,
            since=since,
            kept_bytes=len(call.body if call else request.body),
            notes=Notes() if self.noting else None,
        )
        case = Case(
            candidate=candidate,
            pool=pool,
            endpoint=endpoint,
            call=call,
            defect=defect,
            request_id=request.request_id,
            accept_language=request.headers.get("accept-language", ""),
            arrived=now,
            later=later,
            member=member,
            ticketed=ticketed,
            trace=trace_of(request) if self.tracing else NO_TRACE,
        )
        if self._desk is not None and candidate.defect is None:
            stays = self._report(self._desk, case, request)
            if stays is not None:
                return stays
        verdict = self._decide(case, later, now)
        if verdict is not None:
            return self._conclude(case, verdict, now)
        case.seconds = self._clock() - now
        return Judgement(None, hold=(candidate.id, pool))

    def _report(self, desk: AgentDesk, case: Case, request: Request) -> Judgement | None:
        """Report a call to the agents' desk; return what is said where it stays there."""
        now, hold = case.arrived, (case.candidate.id, case.pool)
        try:
            arrival = desk.arrive(case, request, now, act=not self.shadow)
        except BaseException:
            desk.left(case.candidate.id)
            raise
        if arrival is Arrival.FOLLOWS:
            return Judgement(self._extension, hold=hold)
        if arrival is Arrival.GOES_ON:
            return None
        if self.shadow:
            return self._conclude(case, self._waits(case, now), now)
        self._bell()
        return Judgement(None, hold=hold)

    def _decide(
        self, case: Case, later: Callable[[Resolution], None], now: float
    ) -> Verdict | None:
        """Ask the gates, and let a call pay that they admit; None where ``later`` has the verdict."""
        try:
            verdict = self._controller.decide(case.candidate, case.pool, now)
            if self.shadow:
                return verdict
            if self._meter is not None and verdict.action is Action.ADMIT:
                return self._pay(self._meter, case, verdict, later, now)
        except BaseException:
            self._forgo(case)
            raise
        if verdict.action is not Action.WAIT:
            return verdict
        self._waiting[case.candidate.id] = case, later
        self._bell()
        return None

    def release(self, hold: tuple[str, str]) -> None:
        """Give back what an exchange held, be it capacity or a place in the queue."""
        ident, pool = hold
        if self._breaker is not None:
            self._breaker.done(ident)
        if self._desk is not None and self._desk.left(ident):
            return
        left = self._waiting.pop(ident, None)
        if left is None:
            if self._meter is not None and ident in self._paying:
                self._paying.remove(ident)
                self._meter.give_back(ident, self._clock())
            self._in_flight.leave(ident)
            self._controller.release(ident, pool)
            self._endings.released(ident)
            self.capacity_changed()
            return
        now = self._clock()
        self._controller.leave(ident, pool, now)
        case, _ = left
        name = case.candidate.classification.service_class.name
        self._observer.waited(pool, name, WaitEnd.LEFT, now - case.arrived)

    def answered(self, hold: tuple[str, str], event: Event) -> Answer | Editor | None:
        """Hear how an exchange is answered; see `extproc.edge.exchange.Gatekeeper`."""
        if event.upstream:
            self._controller.moved(*hold, event.upstream, self._clock())
        reaction = self._in_flight.answered(hold[0], event)
        return reaction if self._desk is None else self._desk.answered(hold[0], event, reaction)

    def failed(self, place: Place, error: Exception, path: str) -> Forward | Answer:
        """Hear of a fault of ours; see `extproc.edge.exchange.Gatekeeper`."""
        return self._faults.met(place, error, path)

    def capacity_changed(self) -> None:
        """Hear that there may be room now; costs nothing where nobody waits."""
        if self._waiting:
            self._bell()

    def pump(self) -> float:
        """Let those go whose turn it is or is over; return when to call again at the latest."""
        now = self._clock()
        try:
            return self._turn(now)
        except Exception as error:
            self._faults.met(Place.PUMP, error)
            return now + _AFTER_FAULT

    def _turn(self, now: float) -> float:
        if self._desk is not None:
            for case in self._desk.ready(now):
                self._judge_late(case, now)
            for case, answer in self._desk.answers():
                case.later(partial(self._share, self._desk, case, answer))
        for pool in self._controller.lines:
            for decision in self._controller.pump(pool, now):
                self._turn_came(decision.call, decision.verdict, decision.waited, now)
            self._evict(pool, now)
        deadline = self._controller.next_deadline()
        return deadline if self._desk is None else min(deadline, self._desk.next_deadline())

    def scraped(self, pool: str) -> None:
        """Hear that an engine of a pool was read."""
        self.capacity_changed()
        try:
            self._evict(pool, self._clock())
        except Exception as error:
            self._faults.met(Place.PUMP, error)

    def _judge_late(self, case: Case, now: float) -> None:
        """Judge a call that has waited at the agents' desk."""
        try:
            judged = self._decide(case, case.later, now)
        except Exception as error:
            case.later(failing(error))
            return
        if judged is not None:
            case.later(partial(self._resolve, case, judged))

    def _evict(self, pool: str, now: float) -> None:
        if not self.shadow:
            self._in_flight.evict(pool, now)

    def switch(self, gate: Gate, *, shadow: bool) -> int:
        """Go over to another mode; return how many of those that wait are turned away.

        Those that wait and that ``gate`` lets pass no more are answered now; in ``shadow`` mode all
        that wait pass.
        """
        self.shadow = shadow
        now, before = self._clock(), len(self._waiting)
        for pool in self._controller.lines:
            for call, verdict in self._controller.recall(pool, gate, now):
                self._turn_came(call, verdict, now - self._waiting[call.id][0].arrived, now)
        turned_away = before - len(self._waiting)
        if shadow:
            for case, _ in list(self._waiting.values()):
                verdict = self._waits(case, now)
                self._controller.leave(case.candidate.id, case.pool, now)
                self._turn_came(case.candidate, verdict, now - case.arrived, now)
            for case in () if self._desk is None else self._desk.dismiss():
                case.later(partial(self._resolve, case, self._waits(case, now)))
        self.capacity_changed()  # others may be first in line now
        return turned_away

    def cut(self, classes: Container[str]) -> int:
        """End the running calls of these classes that can be ended well; return how many."""
        return self._in_flight.cut_classes(classes)

    def adjust(self, catalog: Catalog) -> None:
        """Classify by other limits from now on."""
        self._catalog = catalog
        self.capacity_changed()

    def go_over(self, terms: Terms) -> None:
        """Judge and answer calls that come from now on by other terms."""
        self._sources, self._routing = tuple(terms.sources), terms.routing
        self._responder.go_over(terms.routing, terms.reply_rules, terms.wording)
        self._in_flight.rules = terms.answers
        self.adjust(terms.catalog)

    def _lose_ticket(self, ident: str) -> None:
        """Hear that the ticket of a call has counted elsewhere; if it has gone, it has gone."""
        case, _ = self._waiting.get(ident, (None, None))
        if case is not None and case.candidate.since is not None:
            case.candidate = replace(case.candidate, since=None)
            now = self._clock()
            verdict = self._controller.wait_without_ticket(case.candidate, case.pool, now)
            if verdict.action is not Action.WAIT:
                self._turn_came(case.candidate, verdict, now - case.arrived, now)

    def _waits(self, case: Case, now: float) -> Verdict:
        """Return the verdict that is recorded in shadow mode of a call that would wait."""
        return Verdict(Action.WAIT, Reason.WAITING, self._controller.pools[case.pool].load(now))

    def _turn_came(self, call: Candidate, verdict: Verdict, waited: float, now: float) -> None:
        case, later = self._waiting.pop(call.id)
        end = WaitEnd.SHED if verdict.action is Action.SHED else WaitEnd.ADMITTED
        name = call.classification.service_class.name
        case.waited = waited
        try:
            self._observer.waited(case.pool, name, end, waited)
            if self._meter is not None and verdict.action is Action.ADMIT:
                paid = self._pay(self._meter, case, verdict, later, now)
                if paid is None:
                    return
                verdict = paid
        except Exception as error:
            later(failing(error))
            return
        later(partial(self._resolve, case, verdict))

    def _resolve(self, case: Case, verdict: Verdict) -> Judgement:
        return self._conclude(case, verdict, self._clock())

    def _share(self, desk: AgentDesk, case: Case, answer: Shared) -> Judgement:
        """Answer a call with what another got; nothing was taken for it."""
        began = self._clock()
        load = self._controller.pools[case.pool].load(began)
        verdict = Verdict(Action.MERGE, Reason.MERGED, load)
        judgement = self._responder.shared(case, verdict, answer)
        seconds = case.seconds + self._clock() - began
        self._observer.decided(decided(case, verdict, seconds, shadow=False))
        desk.merged(case.candidate.id)
        return judgement

    def _pay(
        self,
        meter: Meter,
        case: Case,
        verdict: Verdict,
        later: Callable[[Resolution], None],
        now: float,
    ) -> Verdict | None:
        """Take what an admitted call costs; return the verdict, or None where ``later`` has it."""
        candidate = case.candidate
        if candidate.classification.payer is None:
            return verdict

        def answered(refusal: Refusal | None) -> None:
            paid = verdict if refusal is None else self._withdraw(case, verdict, refusal)
            later(partial(self._resolve, case, paid))

        taken = meter.take(candidate, self._controller.pools[case.pool], now, answered)
        if isinstance(taken, Refusal):
            return self._withdraw(case, verdict, taken)
        # From here until the reply is made, who leaves has to be given back what was taken.
        self._paying.add(candidate.id)
        return verdict if taken is Taking.DONE else None

    def _withdraw(self, case: Case, verdict: Verdict, refusal: Refusal) -> Verdict:
        """Take back an admission that could not be paid after all."""
        self._paying.discard(case.candidate.id)
        self._controller.release(case.candidate.id, case.pool)
        self.capacity_changed()
        return refuse(refusal, verdict.load)

    def _conclude(self, case: Case, verdict: Verdict, began: float) -> Judgement:
        """Make the judgement and report the verdict; ``began`` is when this stretch of work did."""
        try:
            judgement = self._made(case, verdict)
            seconds = case.seconds + self._clock() - began
            record = decided(case, verdict, seconds, shadow=self.shadow)
            self._observer.decided(record)
            if judgement.hold is not None:
                self._endings.admitted(record)
                self._paying.discard(record.id)
                if self._desk is not None:
                    self._desk.admitted(case.candidate.id)
                if not self.shadow and self._in_flight.enter(case, verdict):
                    judgement = replace(judgement, revocable=True)
        except BaseException:
            self.release((case.candidate.id, case.pool))
            self._forgo(case)
            raise
        if judgement.hold is None:
            self._forgo(case)
        return judgement

    def _forgo(self, case: Case) -> None:
        """Give back what a gate let a call take that has come to nothing."""
        if self._breaker is not None:
            self._breaker.done(case.candidate.id)
        if self._desk is not None:
            self._desk.left(case.candidate.id)

    def _made(self, case: Case, verdict: Verdict) -> Judgement:
        if self.shadow:
            self._controller.admit(case.candidate, case.pool, self._clock())
            return self._responder.untouched(case)
        rates = () if self._meter is None else self._rates(self._meter, case)
        if verdict.action is Action.ADMIT:
            return self._responder.forward(case, verdict, rates)
        # Who comes with a ticket and is refused for another reason keeps the place all the same.
        kept = verdict.action is Action.SHED or case.ticketed
        ticket = self._tickets.issue(case) if kept else None
        return self._responder.answer(case, verdict, ticket, rates)

    def _rates(self, meter: Meter, case: Case) -> Headers:
        """Return the headers that say how much more the payer may send."""
        payer = case.candidate.classification.payer
        if payer is None:
            return ()
        requests, tokens = meter.levels(payer, self._clock())
        return (*level_headers("requests", requests), *level_headers("tokens", tokens))

    def _read(self, endpoint: Endpoint, request: Request) -> tuple[Call | None, Unreadable | None]:
        if len(request.body) > self._max_body:
            return None, None  # refused for its size; nothing is parsed first
        try:
            call = read(endpoint, request.body)
        except Unreadable as problem:
            return None, problem
        if call.background:
            # It would be answered at once and generate afterwards, out of every book.
            return call, Unreadable("Background responses are not served here.", "background")
        return call, None
