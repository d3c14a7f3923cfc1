"""The controller with a line before its pool: who waits, who goes, what is kept back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Action, Candidate, Controller, Line, RequestLimits, Verdict
from extproc.core.outcomes import End, Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.readings import Reading
from extproc.core.tickets import Subject, Tickets

P0 = ServiceClass("P0", 0, strict=True, max_wait=10.0)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12, max_wait=3.0)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.8)
HASTY = ServiceClass("P0", 0, strict=True)


class Stage:
    """A pool of one endpoint, as full as a test says, and the line before it."""

    def __init__(
        self,
        used: float = 0.0,
        *,
        highest: ServiceClass = P0,
        reserve: float = 0.0,
        evictable: bool = False,
    ):
        self.lowest = replace(P2, evictable=evictable)
        classes = (highest, P1, self.lowest)
        self.pool = Pool("qwen", PoolLimits(10, stale_after=1.0, unknown_after=30.0), classes)
        self.pool.join("e")
        self.fill(used, 0.0)
        self.tickets = Tickets(b"key", window=60.0)
        self.line = Line(Queue(QueueLimits(100, 1 << 20), classes), self.tickets, reserve)
        self.controller = Controller(
            {"qwen": self.pool}, (RequestLimits(1000),), {"qwen": self.line}
        )
        self.number = 0

    def fill(self, used: float, now: float) -> None:
        read = Reading(used, 1000, 16, running=0, waiting=0, preemptions=0)
        self.pool.observe("e", read, read_at=now, now=now)

    def ask(
        self,
        service_class: ServiceClass,
        now: float = 0.0,
        *,
        prompt: int = 10,
        since: float | None = None,
    ) -> Verdict:
        self.number += 1
        who = Classification("t", "", service_class, None, None, (), None, None)
        call = Candidate(
            f"x{self.number}", who, prompt, 10, max_output=10, kept_bytes=10, since=since
        )
        return self.controller.decide(call, "qwen", now)

    def pump(self, now: float) -> list[tuple[str, str]]:
        return [
            (each.call.id, each.verdict.reason.value) for each in self.controller.pump("qwen", now)
        ]


def test_a_strict_class_waits_where_nothing_is_free_and_goes_when_there_is() -> None:
    at = Stage(used=1.0)

    verdict = at.ask(P0)

    assert (verdict.action, verdict.reason.value) == (Action.WAIT, "waiting")
    assert at.controller.next_deadline() == 10.0
    assert at.pump(0.1) == []
    at.fill(0.5, 0.2)
    assert at.pump(0.2) == [("x1", "admitted")]
    assert at.pool.in_flight == 1
    assert at.controller.next_deadline() == math.inf


def test_a_strict_class_that_does_not_wait_here_waits_in_the_engine() -> None:
    at = Stage(used=1.0, highest=HASTY)

    assert at.ask(HASTY).action is Action.ADMIT


def test_for_a_strict_call_that_waits_lower_ones_are_cut_once() -> None:
    at = Stage(evictable=True)
    for _ in range(3):
        at.ask(at.lowest)
    assert at.controller.evictions("qwen", 0.0) == ()
    at.fill(1.0, 0.1)
    assert at.ask(P0, 0.1, prompt=2000).action is Action.WAIT

    assert at.controller.evictions("qwen", 0.5) == ()  # room may come by itself
    assert at.controller.evictions("qwen", 0.6, cuttable=()) == ()
    assert at.controller.evictions("qwen", 0.6, cuttable={"x1", "x2"}) == ("x2", "x1")
    assert at.controller.evictions("qwen", 0.6) == ()

    for each in ("x2", "x1"):
        at.controller.release(each, "qwen")
        at.controller.settle(each, "qwen", End(Outcome.EVICTED))
    at.fill(0.5, 0.7)
    assert at.pump(0.7) == [("x4", "admitted")]


def test_where_no_class_can_be_cut_or_nobody_can_wait_nothing_is_cut() -> None:
    at = Stage(used=1.0)
    at.ask(P0)
    assert at.controller.evictions("qwen", 0.0) == ()
    bare = Controller({"qwen": Stage(used=1.0, evictable=True).pool}, ())
    assert bare.evictions("qwen", 0.0) == ()


def test_at_its_deadline_a_call_is_shed() -> None:
    at = Stage(used=0.95)
    assert at.ask(P1).action is Action.WAIT
    at.fill(0.95, 2.9)

    (decision,) = at.controller.pump("qwen", 3.0)

    verdict = decision.verdict
    assert (verdict.action, verdict.reason.value) == (Action.SHED, "queue_deadline")
    assert (verdict.threshold, verdict.value, decision.waited) == (3.0, 3.0, 3.0)
    assert at.line.calls == {}


def test_nobody_waits_for_an_endpoint_that_is_not_there() -> None:
    at = Stage()
    at.pool.leave("e", 0.0)

    assert at.ask(P0).reason.value == "no_endpoint"


def test_who_comes_while_others_wait_waits_as_well_though_it_would_fit() -> None:
    at = Stage(used=0.95)
    at.ask(P1)
    at.fill(0.5, 0.1)

    assert at.ask(P1, 0.1).action is Action.WAIT
    assert at.ask(P2, 0.1).reason.value == "predicted_wait"
    assert at.ask(P0, 0.1).action is Action.ADMIT
    assert at.pump(0.1) == [("x1", "admitted"), ("x2", "admitted")]
    assert at.ask(P2, 0.1).action is Action.ADMIT


def test_who_leaves_is_forgotten_and_who_does_not_wait_cannot_leave() -> None:
    at = Stage(used=0.95)
    at.ask(P1)

    assert at.controller.leave("x1", "qwen", 0.1)
    assert not at.controller.leave("x1", "qwen", 0.1)
    assert not Controller({"qwen": at.pool}, ()).leave("x1", "qwen", 0.1)
    assert (at.line.calls, len(at.line.queue)) == ({}, 0)


def test_without_a_line_nobody_waits() -> None:
    at = Stage(used=0.95)
    bare = Controller({"qwen": at.pool}, ())
    who = Classification("t", "", P1, None, None, (), None, None)

    assert bare.decide(Candidate("x", who, 10, 10), "qwen", 0.0).action is Action.SHED
    assert bare.next_deadline() == math.inf


def issue(at: Stage, service_class: ServiceClass, number: int) -> None:
    for each in range(number):
        subject = Subject("t", service_class.name, service_class.rank, str(each), b"")
        ident = f"{service_class.name} {each}"
        at.tickets.issue(subject, ident=ident, arrived=0.0, now=0.0)


@pytest.mark.parametrize(
    ("of", "ordinary", "ticketed"),
    [
        (P0, {"P0": 0.0, "P1": 0.2, "P2": 0.2}, {"P0": 0.0, "P1": 0.2, "P2": 0.2}),
        (P1, {"P0": 0.0, "P1": 0.2, "P2": 0.2}, {"P0": 0.0, "P1": 0.0, "P2": 0.2}),
        (P2, {"P0": 0.0, "P1": 0.0, "P2": 0.2}, {"P0": 0.0, "P1": 0.0, "P2": 0.0}),
    ],
)
def test_what_is_kept_back_binds_others_of_the_class_and_those_under_it(
    of: ServiceClass, ordinary: dict[str, float], ticketed: dict[str, float]
) -> None:
    at = Stage(reserve=0.5)
    issue(at, of, 2)

    for service_class in (P0, P1, P2):
        who = Classification("t", "", service_class, None, None, (), None, None)
        call = Candidate("x", who, 10, 10)
        assert at.line.spare(call, at.pool) == pytest.approx(ordinary[service_class.name])
        again = Candidate("x", who, 10, 10, since=0.0)
        assert at.line.spare(again, at.pool) == pytest.approx(ticketed[service_class.name])


def test_no_more_than_the_reserve_is_kept_back() -> None:
    at = Stage(used=0.80, reserve=0.1)
    assert at.ask(P2).action is Action.ADMIT
    issue(at, P2, 9)

    assert at.ask(P2).reason.value in ("kv_demand", "kv_watermark")
    assert at.ask(P2, since=-20.0).action is Action.ADMIT
