"""The meter: what calls take, and what they get back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.classes import Payer
from extproc.core.controller import Refusal
from extproc.core.limits import Level, Plan
from extproc.core.metering import Taking
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.quota.gates import QuotaGate, RateGate
from extproc.quota.ports import Hold, Movement, Settlement

WALL = 1e9 + 1000.0


def near(value: float) -> Any:
    return pytest.approx(value)


def test_a_call_takes_what_it_may_cost_and_gets_back_what_it_did_not(desk: Any) -> None:
    plan = desk.plan(quota=10_000)
    payer = Payer("a", plan)

    assert desk.take(desk.call("x", plan)) is Taking.DONE
    assert desk.meter.levels(payer, desk.now) == (Level(60, 59, 1.0), Level(6000, 5900, 1.0))
    assert desk.meter.holds.free("a", 10_000) == 9_900

    desk.settle("x", prompt=12, output=28)
    assert desk.meter.levels(payer, desk.now)[1] == Level(6000, 5960, near(0.4))
    assert desk.meter.holds.free("a", 10_000) == 9_960
    assert desk.written == [
        Hold("x", "a", "free", 100, WALL),
        Settlement("x", "a", "free", Outcome.COMPLETED, 40, False, WALL),
    ]


def test_an_outcome_that_charges_nothing_gives_the_request_back_as_well(desk: Any) -> None:
    plan = desk.plan(quota=10_000)
    desk.take(desk.call("x", plan))
    desk.settle("x", Outcome.ENGINE_ERROR, prompt=12, output=28)

    assert desk.meter.levels(Payer("a", plan), desk.now) == (
        Level(60, 60, 0.0),
        Level(6000, 6000, 0.0),
    )
    assert desk.meter.holds.free("a", 10_000) == 10_000
    assert desk.written[1] == Settlement("x", "a", "free", Outcome.ENGINE_ERROR, 0, False, WALL)


def test_a_call_that_does_not_go_after_all_costs_nothing(desk: Any) -> None:
    desk.take(desk.call("x", desk.plan(quota=10_000)))
    desk.meter.give_back("x", desk.now)
    desk.meter.give_back("x", desk.now)
    desk.settle("x", prompt=12, output=28)

    assert desk.meter.holds.free("a", 10_000) == 10_000
    assert desk.written == [
        Hold("x", "a", "free", 100, WALL),
        Settlement("x", "a", "free", Outcome.CLIENT_GONE, 0, False, WALL),
    ]
    assert repr(desk.meter) == (
        "<LocalMeter: 0 calls, <Buckets: 1 accounts, a unit costs 1>, "
        "<Holds: 0 accounts, 0 tokens held>>"
    )


def test_a_call_is_settled_once(desk: Any) -> None:
    desk.take(desk.call("x", desk.plan(quota=10_000)))
    for _ in range(3):
        desk.settle("x", prompt=10, output=20)

    assert desk.meter.holds.free("a", 10_000) == 9_970
    assert len(desk.written) == 2


def test_refused_calls_take_nothing(desk: Any) -> None:
    plan = desk.plan(requests=2, tokens=1000, quota=150)
    assert desk.take(desk.call("x", plan)) is Taking.DONE

    assert desk.take(desk.call("y", plan)) == Refusal(Reason.QUOTA_EXHAUSTED, 50, 100)
    assert desk.take(desk.call("y", plan, prompt=2, output=48)) is Taking.DONE
    assert desk.take(desk.call("z", plan, prompt=0, output=0)) == Refusal(
        Reason.RATE_LIMITED, 2, 3, 30.0
    )
    assert len(desk.meter.pending) == 2
    assert [record.id for record in desk.written] == ["x", "y"]


def test_who_has_no_payer_or_an_unlimited_plan_is_not_held_up(desk: Any) -> None:
    unlimited = Plan("all")
    for number in range(1000):
        assert desk.take(desk.call(f"n{number}", None, output=1 << 40)) is Taking.DONE
        assert desk.take(desk.call(f"u{number}", unlimited, output=1 << 40)) is Taking.DONE

    assert desk.meter.levels(Payer("a", unlimited), desk.now) == (None, None)
    assert desk.written == [], "the ledger hears of quotas only"


def test_without_ledger_quotas_hold_all_the_same(desk: Any) -> None:
    meter = type(desk.meter)(None, lambda: 0.0)
    call = desk.call("x", desk.plan(quota=100))

    assert meter.take(call, desk.pool, desk.now, lambda _: None) is Taking.DONE
    meter.give_back("x", desk.now)
    assert meter.holds.free("a", 100) == 100


def test_the_gates_look_and_take_nothing(desk: Any) -> None:
    rate, quota = RateGate(desk.meter), QuotaGate(desk.meter)
    plan = desk.plan(requests=1, quota=100)
    call = desk.call("x", plan)

    for _ in range(100):
        assert rate(call, desk.pool, desk.now) is None
        assert quota(call, desk.pool, desk.now) is None
    desk.take(call)
    assert rate(call, desk.pool, desk.now) == Refusal(Reason.RATE_LIMITED, 1, 2, 60.0)
    assert quota(call, desk.pool, desk.now) == Refusal(Reason.QUOTA_EXHAUSTED, 0, 100)
    for gate in (rate, quota):
        assert gate(desk.call("y", None), desk.pool, desk.now) is None
    assert quota(desk.call("y", desk.plan(requests=1)), desk.pool, desk.now) is None


def test_sixty_four_calls_at_once_hold_no_more_than_there_is(desk: Any) -> None:
    plan = Plan("p", quota=2_345)
    taken = [desk.take(desk.call(f"x{number}", plan)) for number in range(64)]

    assert taken.count(Taking.DONE) == 23
    assert desk.meter.holds.free("a", 2_345) == 45


CALLS = st.lists(
    st.tuples(
        st.sampled_from(("take", "settle", "grant")),
        st.integers(0, 15),
        st.integers(0, 400),
        st.sampled_from(list(Outcome)),
    ),
    max_size=80,
)


@given(steps=CALLS, quota=st.integers(0, 2_000))
def test_charges_never_exceed_what_was_given(
    steps: list[tuple[str, int, int, Outcome]], quota: int, new_desk: Any
) -> None:
    desk, plan = new_desk(), Plan("p", quota=quota)
    running: dict[str, int] = {}
    given_in_all, charged = quota, 0
    for number, (step, which, tokens, outcome) in enumerate(steps):
        ident = f"x{which}"
        if step == "take" and ident not in running:
            taken = desk.take(desk.call(ident, plan, prompt=tokens, output=tokens))
            fits = charged + sum(running.values()) + 2 * tokens <= given_in_all
            assert (taken is Taking.DONE) is fits
            if fits:
                running[ident] = 2 * tokens
        elif step == "settle" and ident in running:
            most = running.pop(ident)
            cost = min(most // 2, tokens)
            desk.settle(ident, outcome, prompt=cost, output=cost)
            if outcome in (Outcome.COMPLETED, Outcome.CLIENT_GONE):
                charged += 2 * cost
        elif step == "grant":
            given_in_all += tokens
            desk.meter.holds.moved(Movement(f"grant-{number}", "a", tokens))
        assert charged + sum(running.values()) <= given_in_all
        assert desk.meter.holds.remaining("a", quota) == given_in_all - charged
        assert desk.meter.holds.held("a") == sum(running.values())
