"""What becomes of the answers to admitted calls: left alone, replaced, edited, cut."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from extproc.core.capacity import Load, Pool, PoolLimits
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Action, Candidate, Controller, Line, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.reasons import Reason, ReplyKind, ReplyOverride, ReplyRules
from extproc.core.records import Decided, Ended
from extproc.core.tickets import Tickets
from extproc.edge.endings import Endings
from extproc.edge.exchange import Editor, Resolution
from extproc.edge.in_flight import AnswerRules, InFlight
from extproc.edge.messages import Answer, Event, Phase
from extproc.edge.responder import Case, Responder, Routing
from extproc.edge.ticket_desk import TicketDesk
from extproc.edge.wording import Wording
from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import read

P2 = ServiceClass("P2", 0, close=0.15, open=0.20, evictable=True)
LOAD = Load(None, 1.0, in_flight=0, endpoints=1)
CALM = Verdict(Action.ADMIT, Reason.ADMITTED, LOAD, free=0.5)
PRESSED = Verdict(Action.ADMIT, Reason.ADMITTED, LOAD, free=0.49)
BODY = {"model": "qwen", "messages": [{"role": "user", "content": "private"}]}
STREAM = {**BODY, "stream": True}
SSE = {":status": "200", "content-type": "text/event-stream; charset=utf-8"}
JSON = {":status": "200", "content-type": "application/json"}
CHUNK = b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"qwen","choices":[%s]}\n\n'


def said(text: str) -> bytes:
    delta = json.dumps({"index": 0, "delta": {"content": text}, "finish_reason": None})
    return CHUNK % delta.encode()


@dataclass
class Desk:
    """Calls in flight, with all that is told of their ends."""

    rules: AnswerRules = field(
        default_factory=lambda: AnswerRules(replaced=frozenset(("502", "503", "504")))
    )
    replies: ReplyRules = field(default_factory=ReplyRules)
    tickets: bool = True
    told: list[Ended] = field(default_factory=list)
    resolutions: list[Resolution] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.endings = Endings(self.told.append, lambda: 0.0)
        responder = Responder(
            routing=Routing({}, "qwen", frozenset(), name_pool=False),
            reply_rules=self.replies,
            wording=Wording({"en": "later"}, "en", "load_shedding_fallback", 15, refusal=False),
            wall_clock=lambda: 1796075036.9,
        )
        pool = Pool("qwen", PoolLimits(10, stale_after=1.0, unknown_after=30.0), (P2,))
        line = Line(Queue(QueueLimits(9, 99), (P2,)), Tickets(b"k" * 16, window=60.0), 0.0)
        controller = Controller({"qwen": pool}, (), {"qwen": line} if self.tickets else None)
        self.in_flight = InFlight(
            rules=self.rules,
            controller=controller,
            responder=responder,
            endings=self.endings,
            tickets=TicketDesk(controller, lambda: 0.0, lambda: 1796075036.9),
        )

    def enter(
        self,
        body: dict[str, Any] | None,
        verdict: Verdict = CALM,
        *,
        stop: tuple[str, ...] = (),
        stop_on: tuple[str, ...] = (),
    ) -> bool:
        """Admit a call ``x``, which may be one that cannot be read; say whether it may be cut."""
        classification = Classification(
            service_class=P2, tenant="marketing", task="t", max_output=None, max_prompt=None,
            finish_reason=None, language=None, stop=stop, stop_on=stop_on,
        )  # fmt: skip
        case = Case(
            candidate=Candidate("x", classification, 10, 100),
            pool="qwen",
            endpoint=Endpoint.CHAT,
            call=None if body is None else read(Endpoint.CHAT, json.dumps(body).encode()),
            defect=None,
            request_id="",
            accept_language="",
            arrived=0.0,
            later=self.resolutions.append,
        )
        self.endings.admitted(
            Decided("x", "", "qwen", "chat", "marketing", "P2", "t", 10, None, verdict, 0.0)
        )
        return self.in_flight.enter(case, verdict)

    def answer(self, headers: dict[str, str], *, details: str = "", end: bool = False) -> Any:
        event = Event(Phase.RESPONSE_HEADERS, headers, details=details, end_of_stream=end)
        return self.in_flight.answered("x", event)

    def edited(self, headers: dict[str, str]) -> Editor:
        return cast("Editor", self.answer(headers))

    def end(self) -> Ended:
        """End the exchange without a word of the access log; return what is told of that."""
        self.in_flight.leave("x")
        self.endings.released("x")
        self.endings.flush()
        (record,) = self.told
        return record


def refused(answer: object) -> tuple[int, str, str]:
    assert isinstance(answer, Answer)
    headers = dict(answer.headers)
    return answer.status, headers["x-tidegate-verdict"], headers["x-tidegate-reason"]


class TestTheEnginesAnswer:
    @pytest.mark.parametrize(
        ("status", "details", "reason", "outcome"),
        [
            ("503", "via_upstream", "engine_rejected", Outcome.ENGINE_REJECTED),
            (
                "503",
                "upstream_reset_before_response_started{connection_termination}",
                "engine_error",
                Outcome.ENGINE_ERROR,
            ),
            ("503", "no_healthy_upstream", "engine_error", Outcome.ENGINE_ERROR),
            ("502", "via_upstream", "engine_error", Outcome.ENGINE_ERROR),
            ("504", "response_timeout", "engine_timeout", Outcome.TIMEOUT),
            ("504", "via_upstream", "engine_timeout", Outcome.TIMEOUT),
        ],
    )
    def test_not_now_becomes_the_fallback_with_its_reason(
        self, status: str, details: str, reason: str, outcome: Outcome
    ) -> None:
        at = Desk()
        at.enter(BODY)

        answer = at.answer({":status": status}, details=details)

        assert refused(answer) == (200, "shed", reason)
        body = json.loads(answer.body)
        assert body["id"] == "chatcmpl-promo-shedded-x"
        assert body["tidegate"] == {"reason": reason}
        assert at.end().outcome is outcome

    def test_to_a_stream_it_is_one(self) -> None:
        at = Desk()
        at.enter(STREAM)

        answer = at.answer({":status": "503"})

        assert ("content-type", "text/event-stream") in answer.headers
        assert answer.body.endswith(b"data: [DONE]\n\n")

    @pytest.mark.parametrize("status", ["200", "400", "404", "429", "500"])
    def test_all_else_passes_untouched(self, status: str) -> None:
        at = Desk()
        at.enter(STREAM)

        assert at.answer({":status": status, "content-type": "text/event-stream"}) is None
        assert at.end().outcome is Outcome.CLIENT_GONE

    def test_which_statuses_is_configured_and_the_kind_of_reply_as_well(self) -> None:
        override = ReplyOverride(Reason.ENGINE_ERROR, None, None, ReplyKind.ERROR, 500)
        at = Desk(AnswerRules(replaced=frozenset(("500",))), ReplyRules((override,)))
        at.enter(BODY)

        assert refused(at.answer({":status": "500"})) == (500, "shed", "engine_error")

    def test_a_body_that_could_not_be_read_gets_an_error(self) -> None:
        at = Desk()
        at.enter(None)

        assert refused(at.answer({":status": "503"})) == (503, "shed", "engine_error")

    def test_of_an_exchange_that_is_over_nothing_is_known(self) -> None:
        at = Desk()
        at.enter(STREAM)
        at.in_flight.leave("x")
        at.in_flight.leave("x")

        assert at.answer({":status": "503"}) is None


class TestEditing:
    def test_an_ordinary_stream_passes_without_us(self) -> None:
        at = Desk()
        at.enter(STREAM)

        assert at.answer(SSE) is None

    def test_a_task_that_stops_early_has_its_streams_edited(self) -> None:
        at = Desk()
        at.enter(STREAM, stop_on=("complete_json",))
        editor = at.edited(SSE)

        assert editor.feed(said('{"a": 1')).data == said('{"a": 1')
        edit = editor.feed(said("} and more"))

        assert edit.finished
        assert edit.data.endswith(b"data: [DONE]\n\n")
        record = at.end()
        assert (record.prompt_tokens, record.completion_tokens) == (None, 2)

    @pytest.mark.parametrize(
        ("body", "headers", "end"),
        [(BODY, JSON, False), (STREAM, JSON, False), (STREAM, SSE, True)],
    )
    def test_what_is_no_stream_is_left_alone(
        self, body: dict[str, Any], headers: dict[str, str], end: bool
    ) -> None:
        at = Desk()
        at.enter(body, stop_on=("complete_json",))

        assert at.answer(headers, end=end) is None

    def test_stop_words_the_engine_has_no_room_for_are_looked_for(self) -> None:
        five = ("a1", "b2", "c3", "d4", "e5")
        at = Desk()
        at.enter(STREAM, stop=five)

        assert at.edited(SSE).feed(said("so e5 far")).finished

    def test_stop_words_that_the_engine_knows_cost_nothing_here(self) -> None:
        at = Desk()
        at.enter(STREAM, stop=("a1",))

        assert at.answer(SSE) is None

    @pytest.mark.parametrize(
        ("body", "headers", "answer"),
        [
            (
                BODY,
                JSON,
                b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}',
            ),
            (
                {**STREAM, "stream_options": {"include_usage": True}},
                SSE,
                b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n',
            ),
        ],
    )
    def test_where_nobody_else_reads_the_usage_every_answer_is_read(
        self, body: dict[str, Any], headers: dict[str, str], answer: bytes
    ) -> None:
        at = Desk(AnswerRules(read_usage=True))
        at.enter(body)

        edit = at.edited(headers).feed(answer, end=True)

        assert edit.data == answer
        record = at.end()
        assert (record.prompt_tokens, record.completion_tokens) == (7, 3)

    def test_usage_that_the_client_did_not_ask_for_is_left_out(self) -> None:
        at = Desk(AnswerRules(read_usage=True))
        at.enter(STREAM)
        usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'

        assert at.edited(SSE).feed(usage).data == b""
        assert at.end().completion_tokens == 3

    def test_what_envoy_cannot_decode_is_read_here(self) -> None:
        at = Desk()
        at.enter(BODY)
        answer = gzip.compress(b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}')

        edit = at.edited({**JSON, "content-encoding": "gzip"}).feed(answer, end=True)

        assert edit.data == answer
        record = at.end()
        assert (record.prompt_tokens, record.completion_tokens) == (7, 3)


class TestCut:
    def test_without_an_answer_it_gets_the_fallback_with_a_ticket(self) -> None:
        at = Desk()
        at.enter(BODY, PRESSED)
        assert "x" in at.in_flight

        at.in_flight.cut("x")

        assert "x" not in at.in_flight, "once is enough"
        at.in_flight.cut("x")
        (resolution,) = at.resolutions
        judgement = resolution()
        assert judgement.hold == ("x", "qwen"), "until Envoy has ended it"
        assert isinstance(judgement.reply, Answer)
        assert refused(judgement.reply) == (200, "shed", "evicted")
        ((name, ticket),) = judgement.reply.unique_headers
        assert name == "x-tidegate-ticket"
        assert json.loads(judgement.reply.body)["tidegate"]["ticket"] == ticket
        assert at.end().outcome is Outcome.EVICTED

    def test_an_answer_that_comes_at_that_moment_is_replaced(self) -> None:
        at = Desk()
        at.enter(STREAM, PRESSED)
        at.in_flight.cut("x")

        assert refused(at.answer(SSE)) == (200, "shed", "evicted")

    def test_a_stream_that_has_not_begun_is_the_fallback_as_a_whole(self) -> None:
        at = Desk()
        at.enter(STREAM, PRESSED)
        editor = at.edited(SSE)
        at.in_flight.cut("x")

        edit = editor.feed(said("hello"))

        assert edit.finished
        assert b"chatcmpl-promo-shedded-x" in edit.data
        assert b"hello" not in edit.data
        assert at.end().outcome is Outcome.EVICTED

    def test_what_of_a_stream_was_not_passed_on_is_at_hand(self) -> None:
        at = Desk()
        at.enter(STREAM, PRESSED)
        editor = at.edited(SSE)
        editor.feed(said("hello")[:9])

        assert editor.unsent == said("hello")[:9]

    def test_a_stream_ends_with_the_message_after_its_text(self) -> None:
        at = Desk()
        at.enter(STREAM, PRESSED)
        editor = at.edited(SSE)
        assert editor.feed(said("hello")).data == said("hello")
        assert "x" in at.in_flight
        at.in_flight.cut("x")

        edit = editor.feed(said("more"))

        assert edit.finished
        message, end, done = edit.data.decode().strip().split("\n\n")
        assert json.loads(message[6:])["choices"][0]["delta"]["content"] == "\n\nlater"
        last = json.loads(end[6:])
        assert last["choices"][0]["finish_reason"] == "load_shedding_fallback"
        assert set(last["tidegate"]) == {"reason", "ticket"}
        assert done == "data: [DONE]"
        assert at.end().outcome is Outcome.EVICTED
        assert at.resolutions == []

    def test_where_there_are_no_tickets_none_is_promised(self) -> None:
        at = Desk(tickets=False)
        at.enter(STREAM, PRESSED)
        editor = at.edited(SSE)
        editor.feed(said("hello"))
        at.in_flight.cut("x")

        assert b'"tidegate":{"reason":"evicted"}' in editor.feed(said("more")).data

    def test_after_a_tool_call_it_goes_on(self) -> None:
        at = Desk()
        at.enter(STREAM, PRESSED)
        editor = at.edited(SSE)
        tool = {"index": 0, "id": "t", "function": {"name": "pay", "arguments": "{"}}
        call = CHUNK % json.dumps({"index": 0, "delta": {"tool_calls": [tool]}}).encode()
        editor.feed(call)
        assert "x" not in at.in_flight

        at.in_flight.cut("x")

        assert editor.feed(said("more")).data == said("more")
        assert at.end().outcome is Outcome.CLIENT_GONE

    def test_structured_output_goes_on_where_no_text_would_be_understood(self) -> None:
        at = Desk()
        at.enter({**STREAM, "response_format": {"type": "json_object"}}, PRESSED)
        editor = at.edited(SSE)
        assert "x" not in at.in_flight
        at.in_flight.cut("x")

        assert editor.feed(said("{")).data == said("{")
        assert at.end().outcome is Outcome.CLIENT_GONE

    def test_what_was_not_prepared_for_it_goes_on(self) -> None:
        at = Desk()
        at.enter(BODY)

        at.in_flight.cut("x")
        at.in_flight.cut("nobody")

        assert "x" not in at.in_flight
        assert 7 not in at.in_flight
        assert at.answer(JSON) is None

    @pytest.mark.parametrize(
        ("free", "in_flight", "expected"),
        [(0.5, 5, False), (0.5, 6, True), (0.49, 0, True), (None, 0, True)],
    )
    def test_only_who_enters_a_pool_that_fills_up_may_be_cut(
        self, free: float | None, in_flight: int, expected: bool
    ) -> None:
        load = Load(None, 1.0, in_flight=in_flight, endpoints=1)
        verdict = Verdict(Action.ADMIT, Reason.ADMITTED, load, free=free)

        assert Desk().enter(BODY, verdict) is expected
        assert Desk().enter(None, verdict) is False

    def test_an_answer_that_is_no_stream_is_complete(self) -> None:
        at = Desk()
        at.enter(BODY, PRESSED)

        assert at.answer(JSON) is None
        assert "x" not in at.in_flight
