"""The gatekeeper: from a request to the reply that Envoy gets.

One request meets, in this order: who is calling (`identity`), what the body means
(`extproc.openai`), class and limits (`extproc.core.classes`), the gates
(`extproc.core.controller`), and what follows: the body rewritten for the engine, or an answer.

Rules this module keeps:

* What is not an inference call passes untouched and is not counted.
* A model that no pool names is decided by the default pool, because that is where Envoy's default
  route sends it: leaving the model out, or inventing one, is no way around the gates.
* A refused call leaves nothing behind, nor does one that a fault of ours ends.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from extproc import contract
from extproc.core.classes import Catalog, Classification
from extproc.core.controller import Action, Candidate, Controller, Verdict
from extproc.core.reasons import REASONS, Reason, ReplyKind, ReplyRules
from extproc.core.records import Decided, Observer
from extproc.edge.exchange import Judgement, Request
from extproc.edge.identity import IdentitySource, identify
from extproc.edge.messages import Answer, Forward, LabelResponse
from extproc.edge.wording import Wording
from extproc.openai import replies
from extproc.openai.calls import LIMITS
from extproc.openai.endpoints import Endpoint, endpoint_of
from extproc.openai.requests import Call, Unreadable, read, rewrite

PASS = Judgement(Forward())


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


class Admission:
    """Judges requests; an `extproc.edge.exchange.Gatekeeper`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        controller: Controller,
        routing: Routing,
        sources: Sequence[IdentitySource],
        reply_rules: ReplyRules,
        wording: Wording,
        max_body: int,
        pass_unreadable: bool,
        observer: Observer,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._controller = controller
        self._routing = routing
        self._sources = tuple(sources)
        self._reply_rules = reply_rules
        self._wording = wording
        self._max_body = max_body
        self._pass_unreadable = pass_unreadable
        self._observer = observer
        self._new_id = new_id
        self._clock = clock
        self._wall_clock = wall_clock

    def judge(self, request: Request) -> Judgement:
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
        classification = self._catalog.classify(
            identify(self._sources, request),
            task=request.headers.get(contract.TASK_HEADER, ""),
            path=request.path.partition("?")[0],
            model=call.model if call else "",
        )
        candidate = Candidate(
            id=self._new_id(),
            classification=classification,
            prompt_tokens=self._controller.prompt_tokens(call.prompt_parts, pool) if call else 0,
            body_bytes=len(request.body),
            defect=defect.message if defect and (call or not self._pass_unreadable) else None,
            max_output=_max_output(call, classification),
            choices=call.choices if call else 1,
            parts=call.prompt_parts if call else None,
        )
        verdict = self._controller.decide(candidate, pool, now)
        try:
            if verdict.action is Action.ADMIT:
                judgement = self._forward(candidate, verdict, pool, call)
            else:
                judgement = self._answer(candidate, verdict, endpoint, call, defect, request)
            self._observer.decided(
                Decided(
                    id=candidate.id,
                    request_id=request.request_id,
                    pool=pool,
                    endpoint=endpoint.value,
                    tenant=classification.tenant,
                    service_class=classification.service_class.name,
                    task=classification.task,
                    prompt_tokens=candidate.prompt_tokens,
                    max_output=classification.max_output,
                    verdict=verdict,
                    seconds=self._clock() - now,
                )
            )
        except BaseException:
            self._controller.release(candidate.id, pool)
            raise
        return judgement

    def release(self, hold: tuple[str, str]) -> None:
        """Give back what an admitted exchange held."""
        self._controller.release(*hold)

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

    def _forward(
        self,
        candidate: Candidate,
        verdict: Verdict,
        pool: str,
        call: Call | None,
    ) -> Judgement:
        classification = candidate.classification
        body = None
        if call is not None:
            prioritised = pool in self._routing.priorities
            body = rewrite(
                call,
                max_output=classification.max_output,
                priority=classification.service_class.engine_priority if prioritised else None,
                stop=classification.stop,
            )
            if body is not None and call.gzipped:
                # The header that says so stays: Envoy lets us change none where it sends no headers.
                # Stored, not compressed: that would hold up everyone else for longer than we may.
                body = gzip.compress(body, compresslevel=0, mtime=0)
        set_headers: list[tuple[str, str]] = []
        if body is not None:
            set_headers.append(("content-length", str(len(body))))
        if self._routing.name_pool:
            set_headers.append((contract.POOL_HEADER, pool))
        return Judgement(
            Forward(
                body=body,
                set_headers=tuple(set_headers),
                clear_route=self._routing.name_pool,
                metadata=(*_metadata(candidate, verdict), ("pool", pool)),
            ),
            hold=(candidate.id, pool),
            labels=LabelResponse(_labels(classification, verdict)),
        )

    def _answer(
        self,
        candidate: Candidate,
        verdict: Verdict,
        endpoint: Endpoint,
        call: Call | None,
        defect: Unreadable | None,
        request: Request,
    ) -> Judgement:
        classification = candidate.classification
        style = self._reply_rules.style(
            verdict.reason, classification.service_class.name, classification.tenant
        )
        language = self._wording.language(
            request.headers.get("accept-language", ""), classification.language
        )
        if style.kind is ReplyKind.FALLBACK and call is not None:
            reply = replies.fallback(
                call,
                ident=candidate.id,
                created=int(self._wall_clock()),
                message=self._wording.messages[language],
                finish_reason=classification.finish_reason or self._wording.finish_reason,
                reason=verdict.reason.value,
                ticket=None,
                retry_after=self._wording.retry_after,
                refusal=self._wording.refusal,
            )
        else:
            temporary = style.status in (429, 503)
            reply = replies.error(
                endpoint,
                status=style.status,
                message=_explanation(verdict, defect, language),
                code=verdict.reason.value,
                type=style.code,
                param=defect.param if defect else None,
                retry_after=self._wording.retry_after if temporary else None,
            )
        return Judgement(
            Answer(
                status=reply.status,
                headers=(*reply.headers, *_labels(classification, verdict)),
                body=reply.body,
                metadata=_metadata(candidate, verdict),
            )
        )


def _max_output(call: Call | None, classification: Classification) -> int | None:
    """Return the tokens of each choice at which the engine will end it, after the clamp."""
    if call is None:
        return classification.max_output
    if call.endpoint is Endpoint.EMBEDDINGS:
        return 0
    asked = call.max_output
    if asked is None or asked < 1:
        asked = LIMITS[call.endpoint].default
    bounds = [each for each in (asked, classification.max_output) if each is not None]
    return min(bounds, default=None)


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


def _metadata(candidate: Candidate, verdict: Verdict) -> tuple[tuple[str, str], ...]:
    classification = candidate.classification
    return (
        ("id", candidate.id),
        ("tenant", classification.tenant),
        ("class", classification.service_class.name),
        ("verdict", verdict.action.value),
        ("reason", verdict.reason.value),
    )
