"""The gatekeeper makes room for calls of a strict class by cutting others that are in flight."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Catalog, ServiceClass, Tenant
from extproc.core.controller import Controller, Line, RequestLimits
from extproc.core.outcomes import Outcome
from extproc.core.queue import PRESSING, Queue, QueueLimits
from extproc.core.readings import Reading
from extproc.core.reasons import ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import Tickets
from extproc.edge.admission import Admission
from extproc.edge.endings import Endings
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.identity import FromHeader
from extproc.edge.messages import Answer, Event, Forward, Phase
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.wording import Wording

P0 = ServiceClass("P0", 0, strict=True, max_wait=10.0)
P2 = ServiceClass("P2", 1, evictable=True)
TOKENS = 16 * 100
ENGINE = "10.0.0.1:8000"


@dataclass
class House:
    """A gatekeeper before one engine of 1,600 tokens; says what becomes of who waits or is cut."""

    told: list[Ended] = field(default_factory=list)
    later: dict[str, list[Resolution]] = field(default_factory=dict)
    now: float = 100.0
    rung: int = 0

    def __post_init__(self) -> None:
        classes = (P0, P2)
        self.pool = Pool("qwen", PoolLimits(100, stale_after=1e9, unknown_after=2e9), classes)
        self.pool.join(ENGINE)
        line = Line(Queue(QueueLimits(10, 1 << 20), classes), Tickets(b"k" * 16, window=60.0), 0.0)
        self.endings = Endings(self.told.append, lambda: self.now)
        ids = iter(range(1, 100))
        self.admission = Admission(
            terms=Terms(
                sources=(FromHeader("x-tenant-id", trusted=True),),
                catalog=Catalog(
                    classes=classes,
                    tenants={"pay": Tenant("pay", P0)},
                    default_tenant=Tenant("anonymous", P2),
                    tasks={},
                    task_by_path={},
                    task_by_model={},
                ),
                routing=Routing({}, "qwen", frozenset(), name_pool=False),
                reply_rules=ReplyRules(),
                wording=Wording({"en": "later"}, "en", "load_shedding_fallback", 15, refusal=False),
            ),
            controller=Controller({"qwen": self.pool}, (RequestLimits(1 << 20),), {"qwen": line}),
            max_body=1 << 20,
            pass_unreadable=True,
            observer=self,
            endings=self.endings,
            new_id=lambda: f"x{next(ids)}",
            clock=lambda: self.now,
            wall_clock=lambda: 1_796_000_000.0,
            bell=self.ring,
        )
        self.scrape()

    def ring(self) -> None:
        self.rung += 1

    def decided(self, record: Decided) -> None:
        pass

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        pass

    def ended(self, record: Ended) -> None:
        raise AssertionError(record)

    def scrape(self) -> None:
        """Read the engine, which has what it was promised."""
        self.now += 0.2
        used = sum(each.size for each in self.pool.promises()) / TOKENS
        running = self.pool.in_flight
        read = Reading(used, TOKENS // 16, 16, running=running, waiting=0, preemptions=0)
        self.pool.sending(ENGINE, self.now)
        self.pool.observe(ENGINE, read, read_at=self.now, now=self.now)
        self.admission.scraped("qwen")

    def ask(self, tokens: int, tenant: str = "chat", **more: object) -> Judgement:
        """Ask with a prompt of about so many tokens; what is said later goes into ``later``."""
        said = {
            "messages": [{"role": "user", "content": "many " * (tokens * 4 // 5)}],
            "max_tokens": 5,
            **more,
        }
        request = Request(
            "/v1/chat/completions", "r1", {"x-tenant-id": tenant}, {}, json.dumps(said).encode()
        )
        heard: list[Resolution] = []
        judgement = self.admission.judge(request, heard.append)
        assert judgement.hold is not None
        self.later[judgement.hold[0]] = heard
        return judgement


def test_who_waits_in_a_strict_class_gets_the_room_of_the_newest_call_under_it() -> None:
    at = House()
    at.ask(500)
    at.ask(500)
    waiting = at.ask(700, "pay")
    assert waiting.reply is None
    at.admission.pump()
    assert at.later["x2"] == [], "others may end in a moment"

    at.now += PRESSING
    at.scrape()

    (cut,) = at.later["x2"]
    judgement = cut()
    assert isinstance(judgement.reply, Answer)
    assert ("x-tidegate-reason", "evicted") in judgement.reply.headers
    assert dict(judgement.reply.unique_headers)["x-tidegate-ticket"]
    assert judgement.hold == ("x2", "qwen")
    assert at.later["x1"] == [], "it was admitted while most of the pool was free"

    at.admission.release(("x2", "qwen"))
    at.admission.pump()
    (admitted,) = at.later["x3"]
    assert isinstance(admitted().reply, Forward)
    at.endings.flush()
    assert [(each.id, each.outcome) for each in at.told] == [("x2", Outcome.EVICTED)]


def test_each_is_cut_once_and_the_next_when_its_room_was_seen_to_be_too_little() -> None:
    at = House()
    for _ in range(3):
        at.ask(300)
    at.ask(300)
    assert at.ask(1200, "pay").reply is None
    at.now += PRESSING

    at.admission.pump()
    at.admission.pump()
    at.scrape()

    assert [name for name, heard in at.later.items() if heard] == ["x3", "x4"]
    for name in ("x3", "x4"):
        at.later[name].pop()()
        at.admission.release((name, "qwen"))
    for _ in range(4):
        at.scrape()
    assert at.later["x2"] == [], "not prepared to be cut"


@pytest.mark.parametrize("tokens", [100, 700])
def test_only_who_is_admitted_into_a_pool_that_fills_up_is_prepared_to_be_cut(tokens: int) -> None:
    at = House()
    at.ask(500)

    assert at.ask(tokens).revocable is (tokens == 700)


def test_a_strict_call_and_one_that_cannot_be_read_are_never_cut() -> None:
    at = House()
    at.ask(500)

    assert not at.ask(800, "pay").revocable
    request = Request("/v1/chat/completions", "r1", {}, {}, b"{" + b"x" * 4000)
    assert not at.admission.judge(request, lambda _: None).revocable


def test_a_cut_call_whose_answer_begins_meanwhile_is_answered_in_its_stead() -> None:
    at = House()
    at.ask(500)
    at.ask(500, stream=True)
    at.ask(700, "pay")
    at.now += PRESSING
    at.admission.pump()

    event = Event(Phase.RESPONSE_HEADERS, {":status": "200", "content-type": "text/event-stream"})
    reply = at.admission.answered(("x2", "qwen"), event)

    assert isinstance(reply, Answer)
    assert ("content-type", "text/event-stream") in reply.headers


def test_an_operator_may_end_what_runs_of_a_class_where_that_can_be_done_well() -> None:
    at = House()
    at.ask(500)
    at.ask(500)
    at.ask(100, "pay")

    assert at.admission.cut(["P1"]) == 0
    assert at.admission.cut(["P2"]) == 1
    assert at.admission.cut(["P2"]) == 0, "once each"

    assert [name for name, heard in at.later.items() if heard] == ["x2"]
    assert isinstance(at.later["x2"][0]().reply, Answer)


def test_in_shadow_mode_nobody_is_cut() -> None:
    at = House()
    for _ in range(2):
        at.ask(500)
    at.ask(700, "pay")
    at.admission.shadow = True
    at.now += PRESSING

    at.scrape()
    at.admission.pump()

    assert at.later["x2"] == []
