"""The gatekeeper where calls wait and come again: queue, tickets, and what is told of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Catalog, ServiceClass, Tenant
from extproc.core.controller import (
    Action,
    Candidate,
    Controller,
    Line,
    Refusal,
    RequestLimits,
)
from extproc.core.queue import Queue, QueueLimits
from extproc.core.reasons import Reason, ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import TicketEvent, Tickets
from extproc.edge.admission import Admission
from extproc.edge.endings import Endings
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.identity import FromHeader
from extproc.edge.messages import Answer, Forward
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.ticket_desk import Claims
from extproc.edge.wording import Wording

P1 = ServiceClass("P1", 0, max_wait=3.0, max_output=100)
P2 = ServiceClass("P2", 1)
WALL = 1_796_000_000.0


def body(text: str = "hi", **more: Any) -> bytes:
    chat = {"model": "qwen", "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(chat).encode()


@dataclass
class House:
    """A gatekeeper whose time and room a test decides; ``room`` calls fit."""

    room: int = 1
    max_calls: int = 100
    reserve: float = 0.0
    now: float = 100.0
    wall: float = WALL
    rung: int = 0
    claims: Claims | None = None
    records: list[Decided] = field(default_factory=list)
    waits: list[tuple[str, WaitEnd, float]] = field(default_factory=list)
    ready: dict[str, Resolution] = field(default_factory=dict)
    told: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        classes = (P1, P2)
        self.pool = Pool(
            "qwen", PoolLimits(self.room, stale_after=1.0, unknown_after=30.0), classes
        )
        self.pool.join("e")
        self.queue = Queue(QueueLimits(self.max_calls, 1 << 20), classes)
        self.tickets = Tickets(b"a key for the tests", window=60.0)
        line = Line(self.queue, self.tickets, self.reserve)
        self.controller = Controller({"qwen": self.pool}, (RequestLimits(1 << 20),), {"qwen": line})
        self.endings = Endings(self.told.append, lambda: self.now)
        ids = iter(range(1, 1000))
        self.admission = Admission(
            terms=Terms(
                sources=(FromHeader("x-tenant-id", trusted=True),),
                catalog=Catalog(
                    classes=classes,
                    tenants={name: Tenant(name, P1) for name in ("a", "b")},
                    default_tenant=Tenant("anonymous", P2),
                    tasks={},
                    task_by_path={},
                    task_by_model={},
                ),
                routing=Routing({"qwen": "qwen"}, "qwen", frozenset(), name_pool=False),
                reply_rules=ReplyRules(),
                wording=Wording({"en": "later"}, "en", "load_shedding_fallback", 15, refusal=False),
            ),
            controller=self.controller,
            max_body=1 << 20,
            pass_unreadable=True,
            observer=self,
            endings=self.endings,
            new_id=lambda: f"x{next(ids)}",
            clock=lambda: self.now,
            wall_clock=lambda: self.wall,
            bell=self.ring,
            claims=self.claims,
        )

    def ring(self) -> None:
        self.rung += 1

    def open_gate(self, call: Candidate, pool: Pool, now: float) -> None:
        """Let every call pass."""

    def decided(self, record: Decided) -> None:
        self.records.append(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        assert (pool, service_class) == ("qwen", "P1")
        self.waits.append((service_class, end, seconds))

    def ended(self, record: Ended) -> None:
        raise AssertionError(record)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def ask(self, raw: bytes | None = None, tenant: str = "a", **headers: str) -> Judgement:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(
            "/v1/chat/completions",
            "r1",
            {"x-tenant-id": tenant, **named},
            {},
            body() if raw is None else raw,
        )
        judgement = self.admission.judge(request, lambda resolution: self._put(resolution))
        self.asked = judgement.hold[0] if judgement.hold else ""
        return judgement

    def _put(self, resolution: Resolution) -> None:
        self.ready[f"{len(self.ready)}"] = resolution

    def pump(self) -> list[Judgement]:
        self.ready.clear()
        self.admission.pump()
        return [each() for each in self.ready.values()]


def answered(judgement: Judgement) -> tuple[dict[str, str], Any]:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    return dict((*reply.headers, *reply.unique_headers)), json.loads(reply.body)


def test_a_call_waits_until_there_is_room() -> None:
    at = House()
    assert at.ask().hold == ("x1", "qwen")
    later = at.ask(body("second", max_tokens=500))
    assert later == Judgement(None, hold=("x2", "qwen"))
    assert (len(at.queue), at.rung) == (1, 1)
    assert at.pump() == []
    assert [record.id for record in at.records] == ["x1"], "nothing is decided yet"

    at.pass_time(1.5)
    at.admission.release(("x1", "qwen"))
    assert at.rung == 2, "room may have come free"
    (judgement,) = at.pump()

    assert isinstance(judgement.reply, Forward)
    assert judgement.reply.body is not None
    assert json.loads(judgement.reply.body)["max_tokens"] == 100
    assert judgement.hold == ("x2", "qwen")
    assert (len(at.queue), at.pool.in_flight) == (0, 1)
    assert at.waits == [("P1", WaitEnd.ADMITTED, 1.5)]
    record = at.records[-1]
    assert (record.id, record.verdict.action, record.seconds) == ("x2", Action.ADMIT, 0.0)
    at.admission.release(("x2", "qwen"))
    assert (at.pool.in_flight, at.rung) == (0, 2), "nobody waits: nobody is woken"


def test_a_call_that_waited_too_long_is_shed_with_a_ticket() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    assert at.admission.pump() == 103.0

    at.pass_time(3.0)
    (judgement,) = at.pump()

    headers, said = answered(judgement)
    assert headers["x-tidegate-reason"] == "queue_deadline"
    assert headers["x-tidegate-verdict"] == "shed"
    assert said["tidegate"] == {
        "reason": "queue_deadline",
        "ticket": headers["x-tidegate-ticket"],
    }
    assert judgement.hold is None
    assert at.waits == [("P1", WaitEnd.SHED, 3.0)]
    assert (len(at.queue), len(at.tickets), at.pool.in_flight) == (0, 1, 1)


def test_a_client_that_leaves_while_waiting_frees_its_place() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))

    at.pass_time(0.5)
    at.admission.release(("x2", "qwen"))
    at.admission.release(("x2", "qwen"))

    assert (len(at.queue), at.queue.bytes) == (0, 0)
    assert at.waits == [("P1", WaitEnd.LEFT, 0.5)]
    assert at.pump() == []
    assert [record.id for record in at.records] == ["x1"]


def test_a_client_that_leaves_as_its_turn_comes_gives_back_its_capacity() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    at.admission.release(("x1", "qwen"))
    at.admission.pump()
    assert at.pool.in_flight == 1

    at.admission.release(("x2", "qwen"))

    assert at.pool.in_flight == 0


def test_a_ticket_is_served_before_newer_arrivals_and_once() -> None:
    at = House()
    at.ask()
    at.ask(body("mine"))
    at.pass_time(3.0)
    (shed,) = at.pump()
    ticket = answered(shed)[0]["x-tidegate-ticket"]
    at.pass_time(15.0)
    at.ask(body("newer"), tenant="b")
    newer = at.asked
    at.pass_time(0.5)
    at.ask(body("mine"), x_tidegate_ticket=ticket)
    mine = at.asked
    at.ask(body("mine"), x_tidegate_ticket=ticket)
    copy = at.asked

    order = []
    for _ in range(3):
        (held,) = [promise.exchange for promise in at.pool.promises()]
        at.admission.release((held, "qwen"))
        (judgement,) = at.pump()
        assert judgement.hold is not None
        order.append(judgement.hold[0])

    assert order == [mine, newer, copy]
    assert at.tickets.events[TicketEvent.REUSED] == 1


def test_without_the_header_the_same_call_of_the_same_session_is_recognised() -> None:
    at = House(room=1)
    at.ask()
    at.ask(body("mine", user="u1"))
    at.pass_time(3.0)
    at.pump()
    at.pass_time(15.0)

    at.ask(body("newer"), tenant="b")
    at.ask(body("mine", user="u2"))
    stranger = at.asked
    at.ask(body("mine", user="u1"))
    mine = at.asked
    at.admission.release(("x1", "qwen"))
    (judgement,) = at.pump()

    assert judgement.hold == (mine, "qwen")
    assert at.tickets.events[TicketEvent.RECOGNISED] == 1
    assert stranger != mine


def test_shed_again_a_call_keeps_its_first_arrival() -> None:
    at = House()
    at.ask()
    at.ask(body("mine"))
    at.pass_time(3.0)
    (first,) = at.pump()
    at.pass_time(15.0)
    at.ask(body("mine"), x_tidegate_ticket=answered(first)[0]["x-tidegate-ticket"])
    at.pass_time(3.0)
    (second,) = at.pump()
    at.pass_time(15.0)

    at.ask(body("mine"), x_tidegate_ticket=answered(second)[0]["x-tidegate-ticket"])

    (call,) = at.controller.lines["qwen"].calls.values()
    assert call.since == pytest.approx(100.0, abs=0.01)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_wall_clock_that_steps_puts_nobody_in_the_future(step: float) -> None:
    at = House()
    at.ask()
    at.ask(body("mine"))
    at.pass_time(3.0)
    (shed,) = at.pump()
    at.wall += step

    at.ask(body("mine"), x_tidegate_ticket=answered(shed)[0]["x-tidegate-ticket"])

    (call,) = at.controller.lines["qwen"].calls.values()
    assert call.since == (at.now if step < 0 else None)


def test_a_class_that_does_not_wait_is_shed_at_once_with_a_ticket() -> None:
    at = House()
    at.ask()

    headers, said = answered(at.ask(body("hi"), tenant="anonymous"))

    assert headers["x-tidegate-reason"] == "concurrency"
    assert said["tidegate"]["ticket"] == headers["x-tidegate-ticket"]
    assert at.rung == 0


def test_a_class_that_does_not_wait_goes_before_nobody_who_does() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    at.admission.release(("x1", "qwen"))

    headers, said = answered(at.ask(tenant="anonymous"))

    assert headers["x-tidegate-reason"] == "predicted_wait"
    assert said["tidegate"]["reason"] == "predicted_wait"
    assert len(at.pump()) == 1


def test_what_is_kept_back_for_tickets_is_not_given_to_others() -> None:
    at = House(room=10, reserve=0.1)
    for number in range(10):
        at.ask(body(f"{number}"))
    answered(at.ask(body("mine"), tenant="anonymous"))
    at.admission.release(("x1", "qwen"))

    headers, _ = answered(at.ask(body("other"), tenant="anonymous"))
    assert headers["x-tidegate-reason"] == "concurrency"
    assert isinstance(at.ask(body("mine"), tenant="anonymous").reply, Forward)


def test_what_is_kept_back_for_a_class_is_given_to_those_above() -> None:
    at = House(room=10, reserve=0.1)
    for number in range(10):
        at.ask(body(f"{number}"))
    answered(at.ask(body("mine"), tenant="anonymous"))
    at.admission.release(("x1", "qwen"))

    assert isinstance(at.ask(body("of P1")).reply, Forward)


def test_what_cannot_be_read_may_wait_but_has_no_ticket() -> None:
    at = House()
    at.ask()

    assert at.ask(b"{nonsense").reply is None
    at.pass_time(3.0)
    (judgement,) = at.pump()

    headers, said = answered(judgement)
    assert "x-tidegate-ticket" not in headers
    assert said["error"]["code"] == "queue_deadline"


def test_an_error_of_the_callers_has_no_ticket() -> None:
    at = House()

    headers, _ = answered(at.ask(body("x" * (1 << 20))))

    assert headers["x-tidegate-reason"] == "body_too_large"
    assert "x-tidegate-ticket" not in headers


def test_a_structured_call_gets_its_ticket_in_the_header() -> None:
    at = House()
    at.ask()

    judgement = at.ask(body(response_format={"type": "json_object"}), tenant="anonymous")

    headers, said = answered(judgement)
    assert said["error"]["code"] == "concurrency"
    assert len(headers["x-tidegate-ticket"]) == 56


def test_a_compressed_body_counts_as_large_as_it_is_kept() -> None:
    at = House()
    at.ask()
    raw = body("x" * 10_000)

    at.ask(gzip.compress(raw))

    assert at.queue.bytes == len(raw)


def test_a_full_queue_refuses_at_once() -> None:
    at = House(max_calls=1)
    at.ask()
    at.ask(body("second"))

    headers, _ = answered(at.ask(body("third")))

    assert headers["x-tidegate-reason"] == "queue_full"


def closing_p1(call: Candidate, pool: Pool, now: float) -> Refusal | None:
    closed = call.classification.service_class is P1
    return Refusal(Reason.MODE_PROTECT) if closed else None


def test_when_a_mode_closes_a_class_those_of_it_that_wait_are_answered_at_once() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    at.pass_time(0.5)

    assert at.admission.switch(closing_p1, shadow=False) == 1
    (judgement,) = [each() for each in at.ready.values()]

    assert answered(judgement)[0]["x-tidegate-reason"] == "mode_protect"
    assert at.waits == [("P1", WaitEnd.SHED, 0.5)]
    assert (len(at.queue), at.pool.in_flight) == (0, 1)
    assert at.admission.switch(closing_p1, shadow=False) == 0


def test_in_shadow_mode_verdicts_are_recorded_and_every_call_passes_untouched() -> None:
    at = House()
    at.admission.switch(at.open_gate, shadow=True)

    judgements = [
        at.ask(body(max_tokens=5000)),
        at.ask(body("second")),
        at.ask(body("third"), tenant="anonymous"),
        at.ask(body("x" * (1 << 20))),
    ]

    told = [(each.verdict.action.value, each.verdict.reason.value) for each in at.records]
    assert told == [
        ("admit", "admitted"),
        ("wait", "waiting"),
        ("shed", "concurrency"),
        ("reject", "body_too_large"),
    ]
    assert all(each.shadow for each in at.records)
    for number, judgement in enumerate(judgements, start=1):
        assert isinstance(judgement.reply, Forward)
        assert (judgement.reply.body, judgement.reply.set_headers) == (None, ())
        assert dict(judgement.reply.metadata)["verdict"] == "admit", "or its end is not logged"
        assert (judgement.labels, judgement.hold) == (None, (f"x{number}", "qwen"))
    assert (at.pool.in_flight, len(at.queue), len(at.tickets)) == (4, 0, 0)

    for number in range(1, 5):
        at.admission.release((f"x{number}", "qwen"))
    assert at.pool.in_flight == 0
    at.now += 5.0
    at.endings.sweep()
    assert len(at.told) == 4


def test_those_that_wait_when_shadow_mode_begins_pass() -> None:
    at = House()
    at.ask()
    at.ask(body("second", max_tokens=5000))

    assert at.admission.switch(at.open_gate, shadow=True) == 0
    (judgement,) = [each() for each in at.ready.values()]

    assert isinstance(judgement.reply, Forward)
    assert judgement.reply.body is None
    assert at.waits == [("P1", WaitEnd.ADMITTED, 0.0)]
    assert (len(at.queue), at.pool.in_flight) == (0, 2)
    assert at.records[-1].verdict.action is Action.WAIT

    at.admission.switch(at.open_gate, shadow=False)
    at.ask(body("third"))
    assert len(at.queue) == 1, "verdicts are acted upon again"


@dataclass
class LateClaims:
    """Says of tickets, when the test wants it, that another has claimed them."""

    lost: list[Callable[[], None]] = field(default_factory=list)

    def claim(self, number: bytes, expires: float, lost: Callable[[], None]) -> None:
        assert len(number) == 9
        assert WALL < expires <= WALL + 120.0
        self.lost.append(lost)


def come_again(at: House) -> None:
    """Let a call wait in vain, and come again with its ticket behind another tenant's."""
    at.ask()
    at.ask(body("mine"))
    at.pass_time(3.0)
    (shed,) = at.pump()
    ticket = answered(shed)[0]["x-tidegate-ticket"]
    at.pass_time(1.0)
    at.ask(body("theirs"), "b")
    at.pass_time(0.1)
    at.ask(body("mine"), x_tidegate_ticket=ticket)


@pytest.mark.parametrize(("elsewhere", "first"), [(False, "a"), (True, "b")])
def test_a_ticket_that_has_counted_elsewhere_is_no_reason_to_go_first(
    elsewhere: bool, first: str
) -> None:
    claims = LateClaims()
    at = House(claims=claims)
    come_again(at)
    (lost,) = claims.lost
    if elsewhere:
        lost()
        lost()
    at.admission.release(("x1", "qwen"))
    (judgement,) = at.pump()

    assert isinstance(judgement.reply, Forward)
    assert dict(judgement.reply.metadata)["tenant"] == first
    lost()
    assert len(at.queue) == 1, "who has gone has gone"


def test_where_it_would_wait_too_long_without_it_the_call_is_shed() -> None:
    claims = LateClaims()
    at = House(max_calls=4, claims=claims)
    come_again(at)
    (lost,) = claims.lost
    for number in range(3):
        at.ask(body(f"more {number}"), "b")
    at.queue.limits = QueueLimits(1, 1 << 20)
    lost()
    headers, _ = answered(list(at.ready.values())[-1]())

    assert headers["x-tidegate-reason"] == "queue_full"
    assert at.waits[-1][1] is WaitEnd.SHED
