"""Who waits and who goes next: behaviour by example; the properties are in test_queue_properties."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from extproc.core.classes import ServiceClass
from extproc.core.fair_line import Waiting
from extproc.core.queue import (
    Dispatch,
    Queue,
    Queued,
    QueueLimits,
    Refused,
    Shed,
    token_cost,
)

P0 = ServiceClass("P0", 0, strict=True, max_wait=10.0)
P1 = ServiceClass("P1", 1, weight=3.0, max_wait=3.0)
P2 = ServiceClass("P2", 2, weight=1.0, max_wait=60.0)
PATIENT = ServiceClass("P1", 1, weight=3.0, max_wait=1e9)
LOWEST = ServiceClass("P2", 2, weight=1.0, max_wait=1e9)
WIDE = QueueLimits(max_calls=10_000, max_bytes=1 << 30)


def queue(*, limits: QueueLimits = WIDE, patient: bool = False) -> Queue:
    return Queue(limits, (P0, PATIENT, LOWEST) if patient else (P0, P1, P2))


def call(
    ident: str,
    service_class: ServiceClass = P1,
    *,
    tenant: str = "a",
    cost: int = 10,
    size: int = 100,
    since: float = 0.0,
    ticketed: bool = False,
) -> Waiting:
    return Waiting(ident, tenant, service_class, cost, size, since, ticketed)


def room(tokens: float) -> Callable[[Waiting], str | None]:
    """Return a place function that has room for so many tokens."""
    left = [tokens]

    def place(asked: Waiting) -> str | None:
        if asked.cost > left[0]:
            return None
        left[0] -= asked.cost
        return "endpoint"

    return place


def gone(out: list[Dispatch[str] | Shed]) -> list[str]:
    return [each.call.id for each in out if isinstance(each, Dispatch)]


def shed(out: list[Dispatch[str] | Shed]) -> list[tuple[str, str]]:
    return [(each.call.id, each.reason.value) for each in out if isinstance(each, Shed)]


def test_the_cost_of_a_call_weighs_its_output_twice() -> None:
    assert token_cost(100, 50) == 200
    assert token_cost(100, 0.2) == 101
    assert token_cost(0, 0) == 1


def test_a_call_waits_and_goes_when_there_is_room() -> None:
    waiting = queue()

    assert waiting.offer(call("x"), 1.0) == Queued(deadline=4.0, predicted=0.0)
    assert waiting.pump(1.5, room(0)) == []
    assert waiting.pump(2.0, room(10)) == [Dispatch(call("x"), "endpoint", 1.0)]
    assert (len(waiting), waiting.bytes) == (0, 0)


def test_at_its_deadline_a_call_is_shed_even_if_there_is_room() -> None:
    waiting = queue()
    waiting.offer(call("x"), 1.0)
    assert waiting.next_deadline() == 4.0

    (end,) = waiting.pump(4.0, room(math.inf))

    assert isinstance(end, Shed)
    assert (end.reason.value, end.threshold, end.value, end.waited) == (
        "queue_deadline",
        3.0,
        3.0,
        3.0,
    )
    assert waiting.next_deadline() == math.inf


def test_strict_goes_first_and_nothing_passes_it() -> None:
    waiting = queue()
    waiting.offer(call("p2", P2), 0.0)
    waiting.offer(call("p1", P1), 0.0)
    waiting.offer(call("big p0", P0, cost=50), 0.0)
    waiting.offer(call("p0", P0, tenant="b", cost=1), 0.0)

    assert gone(waiting.pump(0.1, room(49))) == []
    assert gone(waiting.pump(0.2, room(1000))) == ["big p0", "p0", "p1", "p2"]


def test_a_class_that_does_not_fit_holds_back_those_under_it_and_not_those_above() -> None:
    waiting = queue(patient=True)
    waiting.offer(call("big p1", PATIENT, cost=50), 0.0)
    waiting.offer(call("p2", LOWEST, cost=1), 0.0)
    waiting.offer(call("p0", P0, cost=20), 0.0)

    assert gone(waiting.pump(0.1, room(30))) == ["p0"]

    waiting = queue(patient=True)
    waiting.passed_by(PATIENT, 100, 0.0)
    waiting.offer(call("p1", PATIENT, cost=1), 0.0)
    waiting.offer(call("big p2", LOWEST, cost=50), 0.0)
    assert gone(waiting.pump(0.1, room(30))) == ["p1"]


def test_who_comes_now_must_queue_behind_its_class_and_those_above() -> None:
    waiting = queue()
    waiting.offer(call("p1"), 0.0)

    assert [waiting.holds_up(each) for each in (P0, P1, P2)] == [False, True, True]
    waiting.leave("p1", 0.1)
    assert not waiting.holds_up(P2)


def test_classes_share_by_weight() -> None:
    waiting = queue(patient=True)
    for number in range(400):
        waiting.offer(call(f"p1 {number}", PATIENT), 0.0)
        waiting.offer(call(f"p2 {number}", LOWEST), 0.0)

    served = [name for now in range(400) for name in gone(waiting.pump(now * 0.01, room(10)))]

    assert len(served) == 400
    assert sum(name.startswith("p1") for name in served[:40]) in range(29, 32)
    assert sum(name.startswith("p1") for name in served) in range(298, 303)


def test_what_went_without_waiting_counts_when_classes_share() -> None:
    waiting = queue(patient=True)
    for number in range(3):
        waiting.passed_by(LOWEST, 10, 0.0)
        waiting.offer(call(f"p1 {number}", PATIENT), 0.0)
        waiting.offer(call(f"p2 {number}", LOWEST), 0.0)

    assert gone(waiting.pump(0.0, room(40))) == ["p1 0", "p1 1", "p1 2", "p2 0"]


def test_when_a_tenth_of_its_time_is_spent_a_class_needs_no_weight() -> None:
    waiting = queue()
    waiting.passed_by(P1, 10_000, 0.0)
    waiting.offer(call("p1 0", P1), 0.0)
    waiting.offer(call("p1 1", P1), 0.0)
    waiting.offer(call("p2 0", P2), 0.0)
    waiting.offer(call("p2 1", P2), 0.0)

    assert gone(waiting.pump(0.29, room(10))) == ["p2 0"]
    assert gone(waiting.pump(0.3, room(30))) == ["p1 0", "p1 1", "p2 1"]


def test_while_a_class_sheds_nothing_goes_to_those_under_it() -> None:
    waiting = queue()
    waiting.passed_by(P1, 10_000, 0.0)
    waiting.offer(call("p2", P2, cost=1), 0.0)
    waiting.offer(call("p1 0", P1, cost=50), 0.0)
    waiting.offer(call("p1 1", P1, cost=50), 2.9)

    assert shed(waiting.pump(3.0, room(10))) == [("p1 0", "queue_deadline")]
    assert waiting.pump(3.1, room(10)) == [], "P1 has shed and still waits"
    waiting.leave("p1 1", 3.2)
    assert gone(waiting.pump(3.2, room(10))) == ["p2"]


def test_nothing_goes_to_a_lower_class_in_the_same_breath_as_a_shed() -> None:
    waiting = queue()
    waiting.offer(call("p2", P2, cost=1), 0.0)
    waiting.offer(call("p1", P1, cost=50), 0.0)

    assert waiting.pump(3.0, room(10))[1:] == []
    assert gone(waiting.pump(3.1, room(10))) == ["p2"]


def test_tenants_share_by_what_they_got() -> None:
    waiting = queue(patient=True)
    for number in range(4):
        waiting.offer(call(f"a{number}", PATIENT, tenant="a", cost=30), 0.0)
    for number in range(4):
        waiting.offer(call(f"b{number}", PATIENT, tenant="b", cost=10), 0.0)

    assert gone(waiting.pump(0.0, room(math.inf))) == [
        "a0",
        "b0",
        "b1",
        "b2",
        "a1",
        "b3",
        "a2",
        "a3",
    ]


def test_an_idle_tenant_is_lifted_to_the_least_active_counter() -> None:
    waiting = queue(patient=True)
    for number in range(20):
        waiting.offer(call(f"a{number}", PATIENT, tenant="a"), 0.0)
    waiting.pump(0.0, room(100))
    waiting.offer(call("b0", PATIENT, tenant="b"), 0.0)
    waiting.offer(call("b1", PATIENT, tenant="b"), 0.0)

    assert gone(waiting.pump(0.0, room(40))) == ["a10", "b0", "a11", "b1"]


def test_an_idle_tenant_keeps_what_it_got_too_much() -> None:
    waiting = queue(patient=True)
    waiting.offer(call("a0", PATIENT, tenant="a", cost=100), 0.0)
    waiting.offer(call("b0", PATIENT, tenant="b"), 0.0)
    waiting.offer(call("b1", PATIENT, tenant="b"), 0.0)
    assert gone(waiting.pump(0.0, room(110))) == ["a0", "b0"]
    waiting.offer(call("a1", PATIENT, tenant="a"), 0.0)
    waiting.offer(call("b2", PATIENT, tenant="b"), 0.0)

    assert gone(waiting.pump(0.0, room(30))) == ["b1", "b2", "a1"]


def test_tenants_that_idle_are_forgotten() -> None:
    waiting = queue(patient=True)
    waiting.offer(call("stays", PATIENT, tenant="stays", cost=1), 0.0)
    for number in range(1000):
        waiting.offer(call(f"{number}", PATIENT, tenant=f"t{number}"), 0.0)
        waiting.leave(f"{number}", 0.0)

    lane = waiting._lanes[1]
    assert len(lane._tenants) <= 65
    assert len(lane._ordinary._heap) == len(lane._ordinary._listed) <= 2


def test_a_large_call_is_passed_by_other_tenants_but_not_for_ever() -> None:
    waiting = queue(patient=True)
    waiting.offer(call("large", PATIENT, tenant="a", cost=500), 0.0)
    waiting.offer(call("behind it", PATIENT, tenant="a", cost=1), 0.0)
    for number in range(20):
        waiting.offer(call(f"b{number}", PATIENT, tenant="b", cost=1), 0.0)

    assert gone(waiting.pump(0.0, room(100))) == [f"b{number}" for number in range(8)]
    assert gone(waiting.pump(0.1, room(499))) == []
    assert gone(waiting.pump(0.2, room(503)))[0] == "large"


def test_only_so_many_are_tried_where_nothing_fits() -> None:
    waiting = queue(patient=True)
    for number in range(100):
        waiting.offer(call(f"{number}", PATIENT, tenant=f"t{number}"), 0.0)
    tried: list[str] = []

    def place(asked: Waiting) -> None:
        tried.append(asked.id)

    assert waiting.pump(0.0, place) == []
    assert tried == ["0", "1", "2", "3", "4"]


def test_a_ticket_goes_before_what_came_later_and_after_what_came_before() -> None:
    waiting = queue(patient=True)
    waiting.passed_by(PATIENT, 40, 0.0)
    waiting.offer(call("first", PATIENT, since=3.0), 3.0)
    waiting.offer(call("later", PATIENT, tenant="b", since=5.0), 5.0)
    waiting.offer(call("ticket", PATIENT, tenant="c", since=4.0, ticketed=True), 20.0)

    assert gone(waiting.pump(20.0, room(math.inf))) == ["first", "ticket", "later"]


def test_tickets_get_no_more_than_their_share_before_newcomers() -> None:
    waiting = queue(patient=True)
    for number in range(6):
        waiting.offer(call(f"new {number}", PATIENT, tenant="n", since=50.0), 50.0)
        waiting.offer(call(f"ticket {number}", PATIENT, tenant="t", since=9.0, ticketed=True), 50.0)

    served = gone(waiting.pump(50.0, room(80)))

    assert sum(name.startswith("new") for name in served) in range(3, 5)
    assert len(served) == 8


def test_tickets_are_fair_between_tenants() -> None:
    waiting = queue(patient=True)
    for number in range(3):
        waiting.offer(call(f"a{number}", PATIENT, since=number, ticketed=True), 50.0)
    waiting.offer(call("b", PATIENT, tenant="b", since=40.0, ticketed=True), 50.0)

    assert gone(waiting.pump(50.0, room(20))) == ["a0", "b"]


def test_a_call_that_would_wait_too_long_is_refused_at_once() -> None:
    waiting = queue()
    for number in range(12):
        waiting.offer(call(f"{number}"), 0.0)
    for now in (0.5, 1.0):
        assert len(waiting.pump(now, room(10))) == 1  # 20 tokens a second

    refused = waiting.offer(call("late"), 1.0)

    # 100 tokens wait; 20, and one more call of 10, count as served in one second.
    assert isinstance(refused, Refused)
    assert (refused.reason.value, refused.threshold) == ("predicted_wait", 3.0)
    assert refused.value == pytest.approx(100 / 30, rel=0.05)


def test_a_tenant_that_waits_little_is_not_refused_for_what_others_wait() -> None:
    waiting = queue()
    for number in range(50):
        waiting.offer(call(f"{number}"), 0.0)
    waiting.pump(1.0, room(10))

    assert isinstance(waiting.offer(call("noisy"), 1.0), Refused)
    assert waiting.predicted_wait(P1, "quiet", 1.0) == 0.0
    assert isinstance(waiting.offer(call("quiet", tenant="quiet"), 1.0), Queued)


def test_a_ticket_is_not_refused_for_its_predicted_wait() -> None:
    waiting = queue()
    for number in range(50):
        waiting.offer(call(f"{number}"), 0.0)
    waiting.pump(1.0, room(10))

    assert isinstance(waiting.offer(call("ticket", since=-20.0, ticketed=True), 1.0), Queued)


def test_a_class_that_may_not_wait_is_refused() -> None:
    hasty = ServiceClass("P2", 0)
    waiting = Queue(WIDE, (hasty,))

    refused = waiting.offer(call("x", hasty), 0.0)

    assert refused == Refused(refused.reason, 0.0, None)  # type: ignore[union-attr]
    assert len(waiting) == 0


def test_a_tenant_holds_no_more_places_than_it_leaves_free() -> None:
    waiting = queue(limits=QueueLimits(max_calls=10, max_bytes=10_000))
    answers = [waiting.offer(call(f"a{number}"), 0.0) for number in range(8)]

    assert sum(isinstance(each, Queued) for each in answers) == 5
    assert answers[-1] == Refused(answers[-1].reason, 5, 6)  # type: ignore[union-attr]
    assert isinstance(waiting.offer(call("b", tenant="b"), 0.0), Queued)


def test_bytes_are_bounded_as_places_are() -> None:
    waiting = queue(limits=QueueLimits(max_calls=100, max_bytes=1000))

    assert isinstance(waiting.offer(call("a", size=500), 0.0), Queued)
    refused = waiting.offer(call("a2", size=100), 0.0)
    assert isinstance(refused, Refused)
    assert (refused.reason.value, refused.threshold, refused.value) == ("queue_full", 500, 600)
    assert isinstance(waiting.offer(call("b", tenant="b", size=500), 0.0), Queued)
    assert waiting.bytes == 1000


def test_a_higher_class_displaces_the_newest_of_the_lowest() -> None:
    waiting = queue(limits=QueueLimits(max_calls=4, max_bytes=1000))
    for number, tenant in enumerate("abc"):
        waiting.offer(call(f"p2 {number}", P2, tenant=tenant), 0.0)
    waiting.offer(call("p1 0", P1, tenant="a"), 0.5)
    assert waiting.next_deadline() == 3.5
    waiting.offer(call("p1 1", P1, tenant="b"), 1.0)
    assert waiting.next_deadline() == -math.inf, "what was displaced is to be told at once"

    assert len(waiting) == 4
    out = waiting.pump(1.0, room(0))
    assert shed(out) == [("p2 2", "queue_full")]

    waiting.offer(call("p0", P0, size=750), 1.0)
    out = waiting.pump(1.0, room(0))
    assert shed(out) == [("p2 1", "queue_full"), ("p2 0", "queue_full")]
    assert [(each.threshold, each.value) for each in out if isinstance(each, Shed)] == [
        (4, 5),
        (1000, 1050),
    ]


def test_who_leaves_is_gone_at_once_even_if_already_displaced() -> None:
    waiting = queue(limits=QueueLimits(max_calls=1, max_bytes=1000))
    waiting.offer(call("p2", P2), 0.0)
    waiting.offer(call("p1", P1), 0.0)

    assert waiting.leave("p2", 0.0)
    assert waiting.leave("p1", 0.0)
    assert not waiting.leave("p1", 0.0)
    assert waiting.pump(0.0, room(100)) == []
    assert (len(waiting), waiting.bytes) == (0, 0)


def test_a_call_is_offered_once() -> None:
    waiting = queue()
    waiting.offer(call("x"), 0.0)

    with pytest.raises(ValueError, match="offer each call once"):
        waiting.offer(call("x"), 0.0)


def test_the_queue_can_be_read() -> None:
    waiting = queue()
    waiting.offer(call("x"), 0.0)
    waiting.offer(call("y"), 1.0)
    assert waiting.depth(P1) == 2
    waiting.pump(3.0, room(0))

    assert repr(waiting) == (
        "<Queue 1 calls, 100 bytes: P0 0 of 0 tenants, P1 1 of 1 tenants, short, P2 0 of 0 tenants>"
    )
