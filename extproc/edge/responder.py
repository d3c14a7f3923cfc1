"""What follows from a verdict: the request sent on, rewritten for the engine, or an answer.

Rules this module keeps:

* It decides nothing; reasons, styles and words are looked up.
* What may wait in a queue keeps its body and little beside: see `Case`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from extproc import contract
from extproc.core.agents.runs import Member
from extproc.core.classes import Classification
from extproc.core.controller import Action, Candidate, Verdict
from extproc.core.reasons import REASONS, Reason, ReplyKind, ReplyRules
from extproc.core.records import NO_TRACE
from extproc.edge.exchange import Judgement, Resolution
from extproc.edge.messages import Answer, Forward, LabelResponse
from extproc.edge.sharing import Shared
from extproc.edge.wording import Wording
from extproc.openai import replies
from extproc.openai.endpoints import Endpoint
from extproc.openai.rate_headers import Headers, retry_headers
from extproc.openai.replies import Addressee
from extproc.openai.requests import Call, Unreadable, rewrite
from extproc.openai.rewriting import tells_usage_unasked
from extproc.openai.sse import SSE
from extproc.openai.streams import Ending


@dataclass(frozen=True, slots=True)
class Routing:
    """Which pool serves a model.

    Attributes:
        pools: pool names by model name and alias.
        default: the pool of every other model, or None where there are no pools.
        priorities: pools whose engines heed ``priority``.
        name_pool: tell Envoy the pool in a header, because there are several.
    """

    pools: Mapping[str, str]
    default: str | None
    priorities: frozenset[str]
    name_pool: bool

    def pool(self, model: str) -> str | None:
        """Return the pool that serves a model."""
        return self.pools.get(model, self.default)


_LEFT_OUT = ((contract.USAGE_CHUNK, contract.LEFT_OUT),)


class Case(msgspec.Struct, gc=False):
    """A request that is being judged, with what the reply to it needs.

    Attributes:
        candidate: what is decided about.
        pool: which pool it asks for.
        endpoint: which API it calls.
        call: its body, read, or None where it cannot be.
        defect: why it cannot be read or served, or None.
        request_id: Envoy's, or "".
        accept_language: the header, or "".
        arrived: when it came, on the clock of ``now``.
        later: see `extproc.edge.exchange.Gatekeeper.judge`.
        member: its place in an agent's run, where runs are known.
        ticketed: it came with a ticket.
        seconds: what deciding about it has taken so far.
        waited: how long it waited, or None where it did not.
        trace: the caller's trace context, where calls are traced.
    """

    candidate: Candidate
    pool: str
    endpoint: Endpoint
    call: Call | None
    defect: Unreadable | None
    request_id: str
    accept_language: str
    arrived: float
    later: Callable[[Resolution], None]
    member: Member | None = None
    ticketed: bool = False
    seconds: float = 0.0
    waited: float | None = None
    trace: tuple[str, str] = NO_TRACE


class Responder:
    """Makes the judgement that a verdict leads to."""

    def __init__(
        self,
        *,
        routing: Routing,
        reply_rules: ReplyRules,
        wording: Wording,
        wall_clock: Callable[[], float],
    ) -> None:
        self._routing = routing
        self._reply_rules = reply_rules
        self._wording = wording
        self._wall_clock = wall_clock

    def go_over(self, routing: Routing, reply_rules: ReplyRules, wording: Wording) -> None:
        """Answer by these from now on."""
        self._routing, self._reply_rules, self._wording = routing, reply_rules, wording

    def forward(self, case: Case, verdict: Verdict, rates: Headers = ()) -> Judgement:
        """Send an admitted request on; ``rates`` tell the client what it may still send.

        A stream is to end in a chunk with the usage. Where its client did not ask for that, it is
        left out again: by the editor of a stream that comes through us, else by Envoy.
        """
        classification = case.candidate.classification
        call, body = case.call, None
        if call is not None:
            prioritised = case.pool in self._routing.priorities
            body = rewrite(
                call,
                max_output=classification.max_output,
                priority=classification.service_class.engine_priority if prioritised else None,
                stop=classification.stop,
                include_usage=True,
            )
            if body is not None and call.gzipped:
                # The header that says so stays: Envoy lets us change none where it sends no headers.
                # Stored, not compressed: that would hold up everyone else for longer than we may.
                body = gzip.compress(body, compresslevel=0, mtime=0)
        set_headers: list[tuple[str, str]] = []
        if body is not None:
            set_headers.append(("content-length", str(len(body))))
        if self._routing.name_pool:
            set_headers.append((contract.POOL_HEADER, case.pool))
        return Judgement(
            Forward(
                body=body,
                set_headers=tuple(set_headers),
                clear_route=self._routing.name_pool,
                metadata=(
                    *_metadata(case.candidate, verdict.action, verdict.reason),
                    ("pool", case.pool),
                    *(_LEFT_OUT if call is not None and tells_usage_unasked(call) else ()),
                ),
                endpoint=verdict.endpoint,
            ),
            hold=(case.candidate.id, case.pool),
            labels=LabelResponse(_labels(classification, verdict), unique_headers=rates),
        )

    def untouched(self, case: Case) -> Judgement:
        """Let a request and its response pass byte for byte, whatever was decided."""
        name_pool = self._routing.name_pool
        return Judgement(
            Forward(
                set_headers=((contract.POOL_HEADER, case.pool),) if name_pool else (),
                clear_route=name_pool,
                metadata=(
                    *_metadata(case.candidate, Action.ADMIT, Reason.ADMITTED),
                    ("pool", case.pool),
                ),
            ),
            hold=(case.candidate.id, case.pool),
        )

    def shared(self, case: Case, verdict: Verdict, answer: Shared) -> Judgement:
        """Answer a call with what an identical one got."""
        candidate = case.candidate
        kind = ("content-type", answer.content_type)
        return Judgement(
            Answer(
                status=answer.status,
                headers=(kind, *_labels(candidate.classification, verdict)),
                body=answer.body,
                metadata=_metadata(candidate, verdict.action, verdict.reason),
            )
        )

    def answer(
        self, case: Case, verdict: Verdict, ticket: str | None, rates: Headers = ()
    ) -> Judgement:
        """Answer a refused request; ``rates`` as in `forward`."""
        return Judgement(self.refusal(case, verdict, ticket, case.call, rates))

    def refusal(
        self,
        case: Case,
        verdict: Verdict,
        ticket: str | None,
        call: Addressee | None,
        rates: Headers = (),
    ) -> Answer:
        """Return the answer to a refused request; ``call`` is its body, or what is left of that."""
        classification = case.candidate.classification
        style = self._reply_rules.style(
            verdict.reason, classification.service_class.name, classification.tenant
        )
        language = self._wording.language(case.accept_language, classification.language)
        if style.kind is ReplyKind.FALLBACK and call is not None:
            reply = replies.fallback(
                call,
                ident=case.candidate.id,
                created=int(self._wall_clock()),
                message=self._wording.messages[language],
                finish_reason=classification.finish_reason or self._wording.finish_reason,
                reason=verdict.reason.value,
                ticket=ticket,
                retry_after=self._wording.retry_after,
                refusal=self._wording.refusal,
            )
        else:
            soon = style.status in (429, 503) and not style.lasting
            if soon and verdict.retry_after is not None:
                soon, rates = False, (*rates, *retry_headers(verdict.retry_after))
            reply = replies.error(
                case.endpoint,
                status=style.status,
                message=_explanation(verdict, case.defect, language),
                code=style.known_as or verdict.reason.value,
                type=style.code,
                param=case.defect.param if case.defect else None,
                retry_after=self._wording.retry_after if soon else None,
                retry=not style.lasting,
            )
        return Answer(
            status=reply.status,
            headers=(*reply.headers, *_labels(classification, verdict)),
            body=reply.body,
            metadata=_metadata(case.candidate, verdict.action, verdict.reason),
            unique_headers=(
                rates if ticket is None else (*rates, (contract.TICKET_HEADER, ticket))
            ),
        )

    def ending(
        self, case: Case, verdict: Verdict, ticket: str | None, call: Addressee | None
    ) -> Ending:
        """Return how the stream of a request ends that is refused while it is served."""
        classification = case.candidate.classification
        language = self._wording.language(case.accept_language, classification.language)
        note = {"reason": verdict.reason.value}
        if ticket is not None:
            note["ticket"] = ticket
        instead = self.refusal(case, verdict, ticket, call)
        return Ending(
            finish_reason=classification.finish_reason or self._wording.finish_reason,
            message=self._wording.messages[language],
            note=note,
            fallback=instead.body if ("content-type", SSE) in instead.headers else b"",
        )


def _explanation(verdict: Verdict, defect: Unreadable | None, language: str) -> str:
    entry = REASONS[verdict.reason]
    text = entry.zh if language == "zh" else entry.en
    if verdict.reason is Reason.BAD_REQUEST and defect is not None:
        return f"{text} {defect.message}"
    if verdict.threshold is None or verdict.value is None:
        return text
    return f"{text} ({verdict.value:g}, limit {verdict.threshold:g})"


def _labels(classification: Classification, verdict: Verdict) -> tuple[tuple[str, str], ...]:
    return (
        ("x-tidegate-verdict", verdict.action.value),
        ("x-tidegate-reason", verdict.reason.value),
        ("x-tidegate-class", classification.service_class.name),
    )


def _metadata(candidate: Candidate, action: Action, reason: Reason) -> tuple[tuple[str, str], ...]:
    classification = candidate.classification
    return (
        ("id", candidate.id),
        ("tenant", classification.tenant),
        ("class", classification.service_class.name),
        ("verdict", action.value),
        ("reason", reason.value),
    )
