"""Tickets of calls that waited in vain, through the admission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from extproc.core.queue import QueueLimits
from extproc.core.records import WaitEnd
from extproc.core.tickets import TicketEvent
from extproc.edge.messages import Forward
from tests.edge.house import WALL, House, answered, body


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
