"""From a request to what Envoy is told: the whole way through identity, bodies, classes and gates."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from extproc.core.capacity import Pool, PoolLimits, Reading
from extproc.core.classes import Catalog, ServiceClass, Task, Tenant
from extproc.core.controller import Action, Controller, RequestLimits
from extproc.core.reasons import Reason, ReplyKind, ReplyOverride, ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.edge.admission import Admission
from extproc.edge.endings import Endings
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.identity import FromHeader
from extproc.edge.in_flight import UNTOUCHED, AnswerRules
from extproc.edge.messages import Answer, Event, Forward, Phase
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.wording import Wording

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05, max_output=512, max_prompt=100)
P2 = ServiceClass(
    "P2", 1, close=0.15, open=0.20, concurrency=0.8, max_output=2048, engine_priority=20
)
DEFAULT_REPLIES = ReplyRules()
WORDING = Wording(
    {"zh": "稍后 15", "en": "later 15"}, "zh", "load_shedding_fallback", 15, refusal=False
)


@dataclass
class Recorder:
    records: list[Decided] = field(default_factory=list)

    def decided(self, record: Decided) -> None:
        self.records.append(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        raise AssertionError("there is no queue here")

    def ended(self, record: Ended) -> None:
        raise AssertionError(f"the gatekeeper does not see ends: {record}")


def never(_resolution: Resolution) -> None:
    raise AssertionError("there is no queue here")


@dataclass
class House:
    admission: Admission
    pool: Pool
    recorder: Recorder
    endings: Endings
    ended: list[Ended]

    def fill(self, free: float) -> None:
        read = Reading(1 - free, 1000, 16, running=0, waiting=0, preemptions=0)
        self.pool.observe("e", read, read_at=0.0, now=0.0)

    def judge(
        self, body: dict[str, Any] | bytes, *, path: str = "/v1/chat/completions", **headers: str
    ) -> Judgement:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.admission.judge(Request(path, "r1", named, {}, raw), never)


def house(
    *,
    rules: ReplyRules = DEFAULT_REPLIES,
    wording: Wording = WORDING,
    pass_unreadable: bool = False,
    pools: tuple[str, ...] = ("qwen",),
    priorities: tuple[str, ...] = ("qwen",),
    answers: AnswerRules = UNTOUCHED,
) -> House:
    limits = PoolLimits(10, stale_after=1.0, unknown_after=30.0)
    made = {name: Pool(name, limits, (P0, P2)) for name in pools}
    for pool in made.values():
        pool.join("e")
    recorder = Recorder()
    ended: list[Ended] = []
    endings = Endings(ended.append, lambda: 0.0)
    ticks = iter(range(1_000_000))
    ids = iter(range(1, 1_000_000))
    admission = Admission(
        terms=Terms(
            sources=(FromHeader("x-tenant-id", trusted=True),),
            catalog=Catalog(
                classes=(P0, P2),
                tenants={"pay": Tenant("pay", P0), "brief": Tenant("brief", P2, "stop", "en")},
                default_tenant=Tenant("anonymous", P2),
                tasks={"extract": Task("extract", stop=("END",))},
                task_by_path={},
                task_by_model={},
            ),
            routing=Routing(
                pools={**{name: name for name in pools}, "alias": pools[0] if pools else ""},
                default=pools[0] if pools else None,
                priorities=frozenset(priorities),
                name_pool=len(pools) > 1,
            ),
            reply_rules=rules,
            wording=wording,
            answers=answers,
        ),
        controller=Controller(made, (RequestLimits(max_body=1000),)),
        max_body=1000,
        pass_unreadable=pass_unreadable,
        observer=recorder,
        endings=endings,
        new_id=lambda: f"id{next(ids)}",
        clock=lambda: next(ticks) * 0.001,
        wall_clock=lambda: 1796075036.9,
        bell=lambda: None,
    )
    return House(
        admission, next(iter(made.values()), Pool("", limits, ())), recorder, endings, ended
    )


CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5000}


def forwarded(judgement: Judgement) -> Forward:
    assert isinstance(judgement.reply, Forward)
    return judgement.reply


def answered(judgement: Judgement) -> tuple[int, dict[str, str], Any]:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    return reply.status, dict(reply.headers), json.loads(reply.body)


def test_an_admitted_call_is_clamped_prioritised_and_held() -> None:
    at = house()

    judgement = at.judge(CHAT, x_tenant_id="pay")

    reply = forwarded(judgement)
    assert reply.body is not None
    assert json.loads(reply.body) == {**CHAT, "max_tokens": 512, "priority": 0}
    assert reply.set_headers == (("content-length", str(len(reply.body))),)
    assert not reply.clear_route
    assert reply.metadata == (
        ("id", "id1"),
        ("tenant", "pay"),
        ("class", "P0"),
        ("verdict", "admit"),
        ("reason", "admitted"),
        ("pool", "qwen"),
    )
    assert judgement.labels is not None
    assert judgement.labels.set_headers == (
        ("x-tidegate-verdict", "admit"),
        ("x-tidegate-reason", "admitted"),
        ("x-tidegate-class", "P0"),
    )
    assert judgement.hold == ("id1", "qwen")
    assert at.pool.in_flight == 1
    at.admission.release(("id1", "qwen"))
    assert at.pool.in_flight == 0


def test_a_body_that_needs_no_change_goes_byte_for_byte() -> None:
    at = house(priorities=())

    reply = forwarded(at.judge({**CHAT, "max_tokens": 8}, x_tenant_id="pay"))

    assert reply.body is None
    assert reply.set_headers == ()


def test_a_gzip_body_is_clamped_and_stays_gzip() -> None:
    at = house()

    reply = forwarded(at.judge(gzip.compress(json.dumps(CHAT).encode()), x_tenant_id="pay"))

    assert reply.body is not None
    assert json.loads(gzip.decompress(reply.body))["max_tokens"] == 512


def test_a_tasks_stop_sequences_are_added() -> None:
    reply = forwarded(house().judge(CHAT, x_tenant_id="pay", x_task_type="extract"))

    assert reply.body is not None
    assert json.loads(reply.body)["stop"] == ["END"]


def test_with_several_pools_envoy_is_told_which() -> None:
    at = house(pools=("qwen", "tiny"))

    reply = forwarded(at.judge({**CHAT, "model": "tiny"}, x_tenant_id="pay"))

    assert ("x-tidegate-pool", "tiny") in reply.set_headers
    assert reply.clear_route


@pytest.mark.parametrize("model", ["", "unheard-of", "alias", "qwen"])
def test_no_model_name_is_a_way_around_the_gates(model: str) -> None:
    at = house(pools=("qwen", "tiny"))
    at.fill(0.05)

    status, headers, _ = answered(at.judge({**CHAT, "model": model}))

    assert (status, headers["x-tidegate-reason"]) == (200, "kv_watermark")


def test_what_is_no_inference_call_passes_untouched_and_uncounted() -> None:
    at = house()
    at.fill(0.0)

    judgement = at.judge(b"anything", path="/v1/models")

    assert judgement == Judgement(Forward())
    assert at.recorder.records == []


def test_without_pools_everything_passes() -> None:
    at = house(pools=())

    assert at.judge(CHAT) == Judgement(Forward())


def test_a_shed_call_gets_the_fallback_and_leaves_nothing() -> None:
    at = house()
    at.fill(0.10)

    judgement = at.judge(CHAT)

    status, headers, body = answered(judgement)
    assert (status, headers) == (
        200,
        {
            "content-type": "application/json",
            "retry-after": "15",
            "x-tidegate-verdict": "shed",
            "x-tidegate-reason": "kv_watermark",
            "x-tidegate-class": "P2",
        },
    )
    assert body["id"] == "chatcmpl-promo-shedded-id1"
    assert body["created"] == 1796075036
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "稍后 15"},
            "finish_reason": "load_shedding_fallback",
        }
    ]
    assert judgement.hold is None
    assert judgement.labels is None
    assert at.pool.in_flight == 0
    assert isinstance(judgement.reply, Answer)
    assert ("verdict", "shed") in judgement.reply.metadata


def test_language_and_finish_reason_are_the_tenants_then_the_callers() -> None:
    at = house()
    at.fill(0.10)

    _, _, brief = answered(at.judge(CHAT, x_tenant_id="brief", accept_language="zh"))
    _, _, english = answered(at.judge(CHAT, accept_language="en-GB"))

    assert brief["choices"][0]["message"]["content"] == "later 15"
    assert brief["choices"][0]["finish_reason"] == "stop"
    assert english["choices"][0]["message"]["content"] == "later 15"
    assert english["choices"][0]["finish_reason"] == "load_shedding_fallback"


def test_a_structured_call_gets_an_error_that_is_not_retried_or_a_refusal() -> None:
    structured = {**CHAT, "response_format": {"type": "json_object"}}
    at = house()
    at.fill(0.10)
    status, headers, body = answered(at.judge(structured))
    assert (status, headers["retry-after"], headers["x-should-retry"]) == (429, "15", "false")
    assert body["error"]["code"] == "kv_watermark"

    at = house(wording=replace(WORDING, refusal=True))
    at.fill(0.10)
    status, _, body = answered(at.judge(structured))
    assert (status, body["choices"][0]["message"]["refusal"]) == (200, "稍后 15")


def test_an_override_makes_it_an_error() -> None:
    at = house(
        rules=ReplyRules((ReplyOverride(Reason.KV_WATERMARK, None, None, ReplyKind.ERROR, 429),))
    )
    at.fill(0.10)

    status, headers, body = answered(at.judge(CHAT, accept_language="en"))

    assert (status, headers["retry-after"]) == (429, "15")
    assert (
        body["error"]["message"] == "Too little KV cache is free for this class. (0.1, limit 0.15)"
    )
    assert body["error"]["code"] == "kv_watermark"


def test_a_reason_without_numbers_is_told_without() -> None:
    at = house(
        rules=ReplyRules((ReplyOverride(Reason.NO_ENDPOINT, None, None, ReplyKind.ERROR, None),))
    )
    at.pool.leave("e", 0.0)

    status, _, body = answered(at.judge(CHAT, x_tenant_id="pay", accept_language="en"))

    assert status == 503
    assert body["error"]["message"] == "No engine endpoint is known for this model."


def test_a_prompt_over_the_limit_is_an_error_with_its_numbers() -> None:
    at = house()

    long = {"model": "qwen", "messages": [{"role": "user", "content": "word " * 180}]}
    status, headers, body = answered(at.judge(long, x_tenant_id="pay", accept_language="en"))

    assert (status, headers["x-tidegate-verdict"], headers["x-tidegate-reason"]) == (
        400,
        "reject",
        "prompt_too_long",
    )
    assert "retry-after" not in headers
    assert body["error"]["code"] == "prompt_too_long"
    assert body["error"]["message"].endswith("limit 100)")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", {"error": "invalid_request_error"}),
        ("/v1/messages", {"type": "error", "error": "invalid_request_error"}),
    ],
)
def test_an_unreadable_body_is_an_error_in_the_endpoints_own_shape(
    path: str, expected: dict[str, str]
) -> None:
    status, headers, body = answered(house().judge(b"{nonsense", path=path, accept_language="en"))

    assert (status, headers["x-tidegate-reason"]) == (400, "bad_request")
    assert body["error"]["type"] == expected["error"]
    assert body.get("type") == expected.get("type")
    assert "nonsense" not in json.dumps(body), "what the caller sent is not repeated"


def test_an_unreadable_body_passes_where_that_is_configured_but_not_through_a_closed_gate() -> None:
    at = house(pass_unreadable=True)
    judgement = at.judge(b"{nonsense")
    assert forwarded(judgement).body is None
    assert judgement.hold == ("id1", "qwen")

    at.fill(0.10)
    status, headers, body = answered(at.judge(b"{nonsense", accept_language="en"))
    assert (status, headers["retry-after"]) == (503, "15")
    assert body["error"]["code"] == "kv_watermark"


@pytest.mark.parametrize("pass_unreadable", [False, True])
def test_a_response_that_would_run_on_in_the_background_is_refused(pass_unreadable: bool) -> None:
    at = house(pass_unreadable=pass_unreadable)

    status, headers, body = answered(
        at.judge({"model": "qwen", "input": "hi", "background": True}, path="/v1/responses")
    )

    assert (status, headers["x-tidegate-reason"]) == (400, "bad_request")
    assert body["error"]["param"] == "background"


def test_a_path_that_serves_several_endpoints_is_what_its_body_is() -> None:
    at = house()
    at.fill(0.10)

    _, _, body = answered(at.judge(CHAT, path="/invocations"))

    assert body["object"] == "chat.completion"
    assert at.recorder.records[0].endpoint == "chat"


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    status, headers, body = answered(house().judge(b"{" * 1001, accept_language="en"))

    assert (status, headers["x-tidegate-reason"]) == (413, "body_too_large")
    assert body["error"]["message"].endswith("(1001, limit 1000)")


def test_a_decision_is_recorded_with_its_numbers() -> None:
    at = house()
    at.fill(0.10)
    at.judge(CHAT, x_tenant_id="newcomer", x_task_type="extract")

    (record,) = at.recorder.records
    assert (record.id, record.request_id, record.pool, record.endpoint) == (
        "id1",
        "r1",
        "qwen",
        "chat",
    )
    assert (record.tenant, record.service_class, record.task) == ("newcomer", "P2", "extract")
    assert (record.verdict.action, record.verdict.reason) == (Action.SHED, Reason.KV_WATERMARK)
    assert record.verdict.load.free == pytest.approx(0.10)
    assert record.verdict.threshold == 0.15
    assert record.prompt_tokens >= 1
    assert record.max_output == 2048
    assert record.seconds == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("path", "body", "tenant", "wanted"),
    [
        ("/v1/chat/completions", {"max_tokens": 100, "n": 3}, "pay", (100, 3)),
        ("/v1/chat/completions", {"max_tokens": 5000}, "pay", (512, 1)),
        ("/v1/chat/completions", {}, "pay", (512, 1)),
        ("/v1/chat/completions", {"max_tokens": 0}, "pay", (512, 1)),  # the engine will refuse it
        ("/v1/completions", {"prompt": ["a", "b"]}, "pay", (16, 2)),
        ("/v1/embeddings", {"input": "a"}, "pay", (0, 1)),
    ],
)
def test_what_a_call_may_generate_is_what_is_promised(
    path: str, body: dict[str, Any], tenant: str, wanted: tuple[int | None, int]
) -> None:
    at = house()
    at.judge({"model": "qwen", **body}, path=path, x_tenant_id=tenant)

    (held,) = at.pool.promises()
    assert (held.demand.max_output, held.demand.choices) == wanted
    assert held.demand.prompt >= 1
    assert held.demand.parts is not None


def test_of_a_body_that_nobody_could_read_the_class_limit_is_promised() -> None:
    at = house(pass_unreadable=True)
    at.judge(b"{", x_tenant_id="pay")

    (held,) = at.pool.promises()
    assert (held.demand.max_output, held.demand.choices, held.demand.parts) == (512, 1, None)


def test_what_an_engine_tells_of_its_load_is_handed_on() -> None:
    told: list[tuple[str, str, str]] = []
    at = house(answers=AnswerRules(reported=lambda *report: told.append(report)))
    at.judge(CHAT, x_tenant_id="pay")

    for headers in ({}, {"endpoint-load-metrics": "JSON {}"}):
        event = Event(Phase.RESPONSE_HEADERS, headers, upstream="10.0.0.2:8000")
        assert at.admission.answered(("id1", "qwen"), event) is None

    assert told == [("qwen", "10.0.0.2:8000", "JSON {}")]


def test_the_books_follow_the_engine_that_answers() -> None:
    at = house()
    at.pool.join("10.0.0.2:8000")
    at.judge(CHAT, x_tenant_id="pay")

    at.admission.answered(("id1", "qwen"), Event(Phase.RESPONSE_HEADERS, upstream="10.0.0.2:8000"))

    held = at.pool.promise("id1")
    assert held is not None
    assert held.endpoint == "10.0.0.2:8000"


def test_a_fault_of_ours_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    at = house()
    at.fill(1.0)

    def fail(record: Decided) -> None:
        raise RuntimeError

    monkeypatch.setattr(at.recorder, "decided", fail)
    with pytest.raises(RuntimeError):
        at.judge(CHAT, x_tenant_id="brief")

    assert at.pool.in_flight == 0


def test_only_what_was_admitted_is_told_to_end() -> None:
    at = house()
    admitted = at.judge(CHAT, x_tenant_id="pay")
    at.fill(0.0)
    shed = at.judge(CHAT)
    assert isinstance(shed.reply, Answer)
    assert admitted.hold is not None

    at.admission.release(admitted.hold)
    at.endings.flush()

    assert [(each.id, each.service_class) for each in at.ended] == [("id1", "P0")]
