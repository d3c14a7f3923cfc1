"""The gatekeeper where tenants have plans: who pays, when, and what clients are told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Catalog, Payer, ServiceClass, Tenant
from extproc.core.controller import Candidate, Controller, Line, Refusal, RequestLimits
from extproc.core.limits import Level, Plan, Rate
from extproc.core.metering import Answered, Taking
from extproc.core.outcomes import End, Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.reasons import Reason, ReplyKind, ReplyOverride, ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import Tickets
from extproc.edge.admission import Admission
from extproc.edge.endings import Endings
from extproc.edge.exchange import Exchange, Judgement, Request, Resolution, State
from extproc.edge.identity import FromHeader
from extproc.edge.messages import Answer, Event, Forward, LabelResponse, Phase
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.wording import Wording
from extproc.quota.gates import QuotaGate, RateGate
from extproc.quota.meter import LocalMeter

P1 = ServiceClass("P1", 0, max_wait=3.0, max_output=100)
P2 = ServiceClass("P2", 1, max_output=100)
FREE = Plan("free", Rate(60), Rate(6000), quota=1_000_000)


class AskingMeter(LocalMeter):
    """Says later what the local one says at once."""

    def __init__(self) -> None:
        super().__init__(None, lambda: 0.0)
        self.asked: dict[str, Answered] = {}

    def take(self, call: Candidate, pool: Pool, now: float, answered: Answered) -> Taking | Refusal:
        taken = super().take(call, pool, now, answered)
        self.asked[call.id] = answered
        return Taking.ASKED if taken is Taking.DONE else taken

    def give_back(self, exchange: str, now: float) -> None:
        self.asked.pop(exchange, None)
        super().give_back(exchange, now)

    def answer(self, exchange: str, refusal: Refusal | None = None) -> None:
        self.asked.pop(exchange)(refusal)


@dataclass
class House:
    """A gatekeeper before one pool with room for ``room`` calls."""

    room: int = 100
    meter: LocalMeter = field(default_factory=lambda: LocalMeter(None, lambda: 0.0))
    trusted: bool = True
    rules: ReplyRules = field(default_factory=ReplyRules)
    plans: dict[str, Plan] = field(default_factory=lambda: {"a": FREE, "anonymous": FREE})
    now: float = 100.0
    records: list[Decided] = field(default_factory=list)
    waits: list[WaitEnd] = field(default_factory=list)
    ready: list[Resolution] = field(default_factory=list)
    told: list[Ended] = field(default_factory=list)
    rung: int = 0

    def __post_init__(self) -> None:
        classes = (P1, P2)
        limits = PoolLimits(self.room, stale_after=1.0, unknown_after=30.0)
        self.pool = Pool("qwen", limits, classes)
        self.pool.join("e")
        self.tickets = Tickets(b"a key for the tests", window=60.0)
        line = Line(Queue(QueueLimits(100, 1 << 20), classes), self.tickets, 0.0)
        gates = (RequestLimits(1 << 20), RateGate(self.meter), QuotaGate(self.meter))
        self.controller = Controller({"qwen": self.pool}, gates, {"qwen": line})
        self.endings = Endings(self.told.append, lambda: self.now)
        ids = iter(range(1, 10_000))
        self.admission = Admission(
            terms=Terms(
                sources=(FromHeader("x-tenant-id", trusted=self.trusted),),
                catalog=Catalog(
                    classes=classes,
                    tenants={
                        "a": Tenant("a", P1, plan=self.plans.get("a")),
                        "b": Tenant("b", P1),
                    },
                    default_tenant=Tenant("anonymous", P2, plan=self.plans.get("anonymous")),
                    tasks={},
                    task_by_path={},
                    task_by_model={},
                ),
                routing=Routing({"qwen": "qwen"}, "qwen", frozenset(), name_pool=False),
                reply_rules=self.rules,
                wording=Wording({"en": "later"}, "en", "load_shedding_fallback", 15, refusal=False),
            ),
            controller=self.controller,
            max_body=1 << 20,
            pass_unreadable=False,
            observer=self,
            endings=self.endings,
            meter=self.meter,
            new_id=lambda: f"x{next(ids)}",
            clock=lambda: self.now,
            wall_clock=lambda: 1.8e9 + self.now,
            bell=self.ring,
        )

    def ring(self) -> None:
        self.rung += 1

    def decided(self, record: Decided) -> None:
        self.records.append(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        self.waits.append(end)

    def ended(self, record: Ended) -> None:
        raise AssertionError(record)

    def ask(
        self, tenant: str = "a", *, text: str = "hi", path: str = "chat/completions", **more: Any
    ) -> Judgement:
        chat = {"model": "qwen", "messages": [{"role": "user", "content": text}], **more}
        headers = {"x-tenant-id": tenant}
        request = Request(f"/v1/{path}", "r1", headers, {}, json.dumps(chat).encode())
        return self.admission.judge(request, self.ready.append)

    def pump(self) -> list[Judgement]:
        self.admission.pump()
        return self.resolve()

    def resolve(self) -> list[Judgement]:
        due, self.ready[:] = list(self.ready), []
        return [each() for each in due]


def rates(judgement: Judgement) -> dict[str, str]:
    """Return the rate headers on what the client will get."""
    reply = judgement.labels if isinstance(judgement.reply, Forward) else judgement.reply
    assert isinstance(reply, LabelResponse | Answer)
    return {name: value for name, value in reply.unique_headers if "tidegate" not in name}


def error(judgement: Judgement) -> tuple[int, dict[str, Any]]:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    return reply.status, json.loads(reply.body)["error"]


def test_admitted_replies_say_how_much_more_may_be_sent() -> None:
    at = House()

    assert rates(at.ask()) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5884",
        "x-ratelimit-reset-tokens": "1.16s",
    }


def test_over_the_rate_is_429_with_a_hint_that_is_true() -> None:
    at = House()
    admitted = [at.ask(max_tokens=1) for _ in range(60)]
    assert all(isinstance(each.reply, Forward) for each in admitted)

    refused = at.ask(max_tokens=1)
    assert error(refused) == (
        429,
        {
            "message": "The tenant's requests or tokens per minute are used up. (61, limit 60)",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        },
    )
    assert rates(refused) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "4740",
        "x-ratelimit-reset-tokens": "12.6s",
        "retry-after": "1",
        "retry-after-ms": "1000",
    }
    assert "retry-after" not in dict(refused.reply.headers)  # type: ignore[union-attr]
    at.now += 1.0
    assert isinstance(at.ask(max_tokens=1).reply, Forward)
    assert at.records[60].verdict.reason is Reason.RATE_LIMITED
    assert at.records[60].verdict.retry_after == 1.0


def test_anthropics_clients_get_their_own_shape() -> None:
    at = House(plans={"a": Plan("p", Rate(1))})
    at.ask(path="messages", max_tokens=1)

    reply = at.ask(path="messages", max_tokens=1).reply
    assert isinstance(reply, Answer)
    body = json.loads(reply.body)
    assert (reply.status, body["type"], body["error"]["type"]) == (429, "error", "rate_limit_error")


def test_without_quota_clients_are_told_not_to_come_again() -> None:
    at = House(plans={"a": Plan("p", quota=150)})
    at.ask()

    refused = at.ask()
    assert error(refused) == (
        429,
        {
            "message": "The tenant's quota for this period does not cover the call. (116, limit 34)",
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        },
    )
    assert dict(refused.reply.headers)["x-should-retry"] == "false"  # type: ignore[union-attr]
    assert "retry-after" not in dict(refused.reply.headers)  # type: ignore[union-attr]
    assert rates(refused) == {}


def test_another_kind_of_reply_can_be_configured() -> None:
    override = ReplyOverride(Reason.RATE_LIMITED, None, None, ReplyKind.ERROR, 503)
    at = House(plans={"a": Plan("p", Rate(1))}, rules=ReplyRules((override,)))
    at.ask()

    status, body = error(at.ask())
    assert (status, body["code"]) == (503, "rate_limit_exceeded")


def test_tenants_without_plan_pay_nothing() -> None:
    at = House()

    judgements = [at.ask("b") for _ in range(99)]
    assert all(isinstance(each.reply, Forward) for each in judgements)
    assert rates(judgements[0]) == {}
    assert not at.meter.pending


@pytest.mark.parametrize(
    ("trusted", "tenant", "account"),
    [
        (True, "a", "a"),
        (True, "somebody", "somebody"),
        (True, "", "anonymous"),
        (True, "a,b", "anonymous"),
        (False, "a", "anonymous"),
        (False, "somebody", "anonymous"),
    ],
)
def test_who_is_not_believed_pays_as_the_default_tenant(
    trusted: bool, tenant: str, account: str
) -> None:
    at = House(trusted=trusted)
    at.ask(tenant)

    assert [held.payer for held in at.meter.pending.values()] == [Payer(account, FREE)]


def test_refused_calls_take_nothing() -> None:
    at = House(room=1)
    at.ask("anonymous")
    for _ in range(10):
        assert isinstance(at.ask("anonymous").reply, Answer)

    assert at.meter.levels(Payer("anonymous", FREE), at.now)[0] == Level(60, 59, 1.0)


def test_a_call_that_waits_pays_when_it_goes() -> None:
    at = House(room=1)
    first = at.ask()
    assert at.ask(text="second").reply is None
    assert list(at.meter.pending) == ["x1"]

    assert first.hold is not None
    at.admission.release(first.hold)
    (second,) = at.pump()
    assert isinstance(second.reply, Forward)
    assert rates(second)["x-ratelimit-remaining-requests"] == "58"
    assert list(at.meter.pending) == ["x1", "x2"], "the first is not settled yet"


def test_what_is_gone_when_a_call_would_go_refuses_it_and_frees_its_place() -> None:
    at = House(room=1, plans={"a": Plan("p", Rate(2))})
    first = at.ask()
    second, third = at.ask(text="second"), at.ask(text="third")
    assert (second.reply, third.reply) == (None, None), "both were looked at, neither has paid"

    assert first.hold is not None
    at.admission.release(first.hold)
    (paid,) = at.pump()
    assert paid.hold is not None
    at.admission.release(paid.hold)
    (refused,) = at.pump()

    assert error(refused)[1]["code"] == "rate_limit_exceeded"
    assert rates(refused)["retry-after"] == "30"
    assert at.pool.in_flight == 0
    assert at.waits == [WaitEnd.ADMITTED, WaitEnd.ADMITTED]


def test_a_ticket_outlives_a_refusal_for_the_rate() -> None:
    at = House(room=1, plans={"anonymous": Plan("p", Rate(1))})
    at.ask("b")
    shed = at.ask("anonymous")
    assert isinstance(shed.reply, Answer)
    token = dict(shed.reply.unique_headers)["x-tidegate-ticket"]
    assert at.ask("anonymous", text="other").reply is not None
    at.admission.release(("x1", "qwen"))
    assert isinstance(at.ask("anonymous", text="yet another").reply, Forward)

    refused = at.ask("anonymous")
    assert isinstance(refused.reply, Answer)
    again = dict(refused.reply.unique_headers)["x-tidegate-ticket"]
    assert error(refused)[1]["code"] == "rate_limit_exceeded"
    assert again != token
    assert len(at.tickets) == 2


def test_who_leaves_before_the_reply_gets_everything_back() -> None:
    at = House(room=1)
    first, second = at.ask(), at.ask(text="second")
    assert first.hold is not None
    assert second.hold is not None
    at.admission.release(first.hold)
    at.admission.pump()
    assert list(at.meter.pending) == ["x1", "x2"]

    at.admission.release(second.hold)
    assert list(at.meter.pending) == ["x1"]
    assert at.pool.in_flight == 0


def test_a_fault_of_ours_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    at = House()

    def fail(record: Decided) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(at, "decided", fail)
    with pytest.raises(RuntimeError):
        at.ask()
    assert not at.meter.pending
    assert at.pool.in_flight == 0


@pytest.fixture
def asking() -> tuple[House, AskingMeter]:
    meter = AskingMeter()
    return House(meter=meter), meter


def test_who_must_be_asked_is_waited_for(asking: tuple[House, AskingMeter]) -> None:
    at, meter = asking
    assert at.ask() == Judgement(None, hold=("x1", "qwen"))
    assert (at.pool.in_flight, at.records) == (1, [])

    meter.answer("x1")
    (judgement,) = at.resolve()
    assert isinstance(judgement.reply, Forward)
    assert rates(judgement)["x-ratelimit-remaining-requests"] == "59"
    at.admission.release(("x1", "qwen"))
    assert list(meter.pending) == ["x1"], "what it costs is settled when its end is told"


def test_a_no_that_comes_later_frees_the_place(asking: tuple[House, AskingMeter]) -> None:
    at, meter = asking
    at.ask()
    meter.answer("x1", Refusal(Reason.RATE_LIMITED, 60, 61, 2.5))
    assert at.pool.in_flight == 0

    (judgement,) = at.resolve()
    assert (judgement.hold, rates(judgement)["retry-after"]) == (None, "3")
    assert at.records[0].verdict.reason is Reason.RATE_LIMITED


@pytest.mark.parametrize("heard", [False, True])
def test_who_leaves_while_it_is_asked_gets_everything_back(
    heard: bool, asking: tuple[House, AskingMeter]
) -> None:
    at, meter = asking
    at.ask()
    if heard:
        meter.answer("x1")
    at.admission.release(("x1", "qwen"))

    assert not meter.pending
    assert not meter.asked
    assert at.pool.in_flight == 0


def test_a_call_that_waited_is_asked_about_when_it_goes() -> None:
    meter = AskingMeter()
    at = House(room=1, meter=meter)
    at.ask()
    meter.answer("x1")
    at.resolve()
    at.ask(text="second")
    assert list(meter.pending) == ["x1"]

    at.admission.release(("x1", "qwen"))
    assert at.pump() == []
    assert at.waits == [WaitEnd.ADMITTED]
    meter.answer("x2")
    assert isinstance(at.resolve()[0].reply, Forward)


def test_an_exchange_waits_for_the_answer_and_then_goes_on(
    asking: tuple[House, AskingMeter],
) -> None:
    at, meter = asking
    heard: list[Resolution] = []
    exchange = Exchange(at.admission, heard.append)
    chat = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}
    event = Event(
        Phase.REQUEST_BODY,
        headers={"x-tenant-id": "a"},
        path="/v1/chat/completions",
        body=json.dumps(chat).encode(),
        end_of_stream=True,
    )

    assert exchange.receive(event) is None
    assert exchange.state is State.WAITING
    meter.answer("x1")
    assert isinstance(exchange.resume(heard[0]), Forward)
    labels = exchange.receive(Event(Phase.RESPONSE_HEADERS))
    assert isinstance(labels, LabelResponse)
    assert ("x-ratelimit-remaining-requests", "59") in labels.unique_headers
    exchange.close()
    at.meter.settle("x1", End(Outcome.COMPLETED, 2, 3), 0.0, at.now)
    assert at.meter.holds.free("a", 1_000_000) == 999_995
