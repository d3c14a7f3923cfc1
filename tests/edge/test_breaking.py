"""The gatekeeper where a tenant's outputs have become far longer than usual."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from extproc.core.breaker import Breaker, BreakerGate, Key, Rules, State
from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Catalog, ServiceClass, Tenant
from extproc.core.controller import Controller, RequestLimits
from extproc.core.reasons import ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.edge.admission import Admission
from extproc.edge.endings import Endings
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.identity import FromHeader
from extproc.edge.messages import Answer, Forward
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.wording import Wording

P1 = ServiceClass("P1", 0, max_output=2048)
KEY = Key("qwen", "acme", "")


class Silent:
    """Nobody looks at the metrics here."""

    def decided(self, record: Decided) -> None: ...

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None: ...

    def ended(self, record: Ended) -> None: ...


def never(_resolution: Resolution) -> None:
    raise AssertionError("there is no queue here")


class House:
    """A gatekeeper with a breaker, at a clock that a test sets."""

    def __init__(self, rules: Rules, concurrency: int = 1000) -> None:
        self.now = 0.0
        self.breaker = Breaker(rules)
        pool = Pool("qwen", PoolLimits(concurrency, stale_after=1.0, unknown_after=30.0), (P1,))
        pool.join("e")
        gates = (RequestLimits(max_body=1000), BreakerGate(self.breaker))
        numbers = iter(range(1_000_000))
        self.admission = Admission(
            terms=Terms(
                sources=(FromHeader("x-tenant-id", trusted=True),),
                catalog=Catalog((P1,), {}, Tenant("anonymous", P1), {}, {}, {}),
                routing=Routing({"qwen": "qwen"}, "qwen", frozenset(), name_pool=False),
                reply_rules=ReplyRules(),
                wording=Wording({"en": "later"}, "en", "shed", 15, refusal=False),
            ),
            controller=Controller({"qwen": pool}, gates),
            max_body=1000,
            pass_unreadable=False,
            observer=Silent(),
            endings=Endings(lambda _: None, lambda: self.now),
            new_id=lambda: f"id{next(numbers)}",
            clock=lambda: self.now,
            wall_clock=lambda: 1796075036.0,
            bell=lambda: None,
            breaker=self.breaker,
        )

    def ask(self, tenant: str = "acme", **body: object) -> Judgement:
        raw = json.dumps({"model": "qwen", "messages": [{"role": "user", "content": "hi"}], **body})
        headers = {"x-tenant-id": tenant}
        request = Request("/v1/chat/completions", "r", headers, {}, raw.encode())
        return self.admission.judge(request, never)

    def ended(self, tokens: int, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.ended(KEY, tokens, admitted_at=self.now, now=self.now)

    def state(self) -> State:
        return dict(self.breaker.tripped()).get(KEY, State.CLOSED)


@pytest.fixture
def clamped() -> Callable[..., House]:
    def make(concurrency: int = 1000) -> House:
        house = House(Rules(sustain=0.0, clamp_for=0.0, open_for=30.0, probes=2), concurrency)
        house.ended(100, times=100)
        while house.state() is State.CLOSED:
            house.ended(2000)
        return house

    return make


@pytest.fixture
def half_open(clamped: Callable[..., House]) -> Callable[..., House]:
    def make(concurrency: int = 1000) -> House:
        house = clamped(concurrency)
        house.ended(2000, times=5)
        assert house.state() is State.OPEN
        house.now += 30.0
        return house

    return make


def most(judgement: Judgement) -> int:
    assert isinstance(judgement.reply, Forward)
    body = json.loads(judgement.reply.body or b"{}")
    return int(body.get("max_completion_tokens") or body["max_tokens"])


def test_outputs_are_clamped_first(clamped: Callable[..., House]) -> None:
    house = clamped()
    assert 200 <= most(house.ask()) < 300
    assert 200 <= most(house.ask(max_tokens=4000)) < 300
    # What the client asks for is less: nothing has to be changed.
    reply = house.ask(max_tokens=50).reply
    assert isinstance(reply, Forward)
    assert reply.body is None
    # Others are not concerned.
    assert most(house.ask("other")) == 2048


def test_then_calls_are_shed_with_a_fallback(clamped: Callable[..., House]) -> None:
    house = clamped()
    house.ended(2000, times=5)
    reply = house.ask().reply
    assert isinstance(reply, Answer)
    assert reply.status == 200
    assert ("x-tidegate-reason", "breaker_output_length") in reply.headers
    assert isinstance(house.ask("other").reply, Forward)


def test_a_probe_that_is_cancelled_makes_room_for_the_next(
    half_open: Callable[..., House],
) -> None:
    house = half_open()
    for _ in range(10):
        first, second, third = house.ask(), house.ask(), house.ask()
        assert isinstance(third.reply, Answer)
        for probe in (first, second):
            assert probe.hold is not None
            house.admission.release(probe.hold)
    assert house.state() is State.HALF_OPEN


def test_a_probe_that_another_gate_refuses_makes_room_for_the_next(
    half_open: Callable[..., House],
) -> None:
    house = half_open(concurrency=1)
    assert isinstance(house.ask("other").reply, Forward)
    for _ in range(10):
        reply = house.ask().reply
        assert isinstance(reply, Answer)
        assert ("x-tidegate-reason", "concurrency") in reply.headers


def test_a_probe_that_a_fault_of_ours_ends_makes_room_for_the_next(
    half_open: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = half_open()

    def broken(*_: object, **__: object) -> Judgement:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(house.admission._responder, "forward", broken)
        for _ in range(10):
            with pytest.raises(RuntimeError, match="a fault of ours"):
                house.ask()
    assert isinstance(house.ask().reply, Forward)
