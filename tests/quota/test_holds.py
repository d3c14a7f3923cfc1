"""Balances: what is spent, held and left, in whatever order it is heard."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from extproc.quota.holds import Holds
from extproc.quota.ports import Movement


def test_an_account_has_its_plans_quota_until_something_is_heard() -> None:
    holds = Holds()

    assert (holds.remaining("a", 1000), holds.held("a"), holds.free("a", 1000)) == (1000, 0, 1000)
    assert len(holds) == 0


def test_a_hold_takes_from_what_is_free_and_its_end_from_what_remains() -> None:
    holds = Holds()
    holds.hold("a", 100)
    assert (holds.remaining("a", 1000), holds.free("a", 1000)) == (1000, 900)

    holds.end("a", 100, 30)
    assert (holds.remaining("a", 1000), holds.free("a", 1000)) == (970, 970)
    assert repr(holds) == "<Holds: 1 accounts, 0 tokens held>"


def test_a_cost_over_the_hold_leaves_a_debt() -> None:
    holds = Holds()
    holds.hold("a", 1000)
    holds.end("a", 1000, 1200)

    assert holds.free("a", 1000) == -200


def test_what_the_ledger_says_replaces_the_plans_quota_and_nothing_else() -> None:
    holds = Holds()
    holds.hold("a", 100)
    holds.end("a", 100, 30)
    holds.moved(Movement("grant-1", "a", 500))
    holds.opened({"a": 400, "b": 7})

    assert (holds.remaining("a", 1000), holds.remaining("b", 1000)) == (870, 7)


def test_nothing_is_remembered_of_an_account_that_is_as_its_plan_says() -> None:
    holds = Holds()
    holds.hold("a", 100)
    holds.end("a", 100, 0)
    assert len(holds) == 0

    holds.hold("a", 100)
    holds.end("a", 100, 60)
    holds.moved(Movement("period-2", "a", 60))
    assert len(holds) == 0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(1, 500), st.integers(0, 700)),
        st.tuples(st.just("move"), st.integers(-300, 300), st.just(0)),
        st.tuples(st.just("open"), st.integers(-100, 900), st.just(0)),
    ),
    max_size=6,
).filter(lambda events: sum(event[0] == "open" for event in events) <= 1)


@given(EVENTS, st.randoms(use_true_random=False))
def test_differences_come_to_the_same_in_every_order(
    events: list[tuple[str, int, int]], random: object
) -> None:
    found = set()
    for order in itertools.islice(itertools.permutations(events), 24):
        holds = Holds()
        for number, (kind, one, other) in enumerate(order):
            if kind == "call":
                holds.hold("a", one)
                holds.end("a", one, other)
            elif kind == "move":
                holds.moved(Movement(str(number), "a", one))
            else:
                holds.opened({"a": one})
        found.add((holds.remaining("a", 1000), holds.free("a", 1000)))
    assert len(found) == 1
