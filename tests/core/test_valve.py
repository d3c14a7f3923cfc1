"""How much Envoy refuses: what is in excess, never of strict classes, and never for longer than need be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.classes import ServiceClass
from extproc.core.reasons import Reason
from extproc.core.valve import MOST, REFUSALS, Shut, Valve

CLASSES = (
    ServiceClass("P0", 0, strict=True),
    ServiceClass("P1", 1),
    ServiceClass("P2", 2),
)
TURN = 0.05


@dataclass
class Flood:
    """A flood at a valve: calls of P2 for one pool, spread evenly."""

    valve: Valve = field(default_factory=lambda: Valve(["m"], CLASSES, through=50.0))
    now: float = 0.0
    seen: int = 0
    _owed: float = 0.0

    def goes_on(
        self,
        seconds: float,
        rate: float,
        *,
        room: float = 0.0,
        closed: Reason | None = None,
        name: str = "P2",
        reason: Reason = Reason.CONCURRENCY,
    ) -> Shut | None:
        """``rate`` calls a second come, of which ``room`` find room; return what is shut then."""
        shut = self.valve.shut().get(("m", name))
        self.seen = 0
        for _ in range(round(seconds / TURN)):
            self._owed += rate * TURN * (1.0 - (shut.share if shut else 0.0))
            came, self._owed = int(self._owed), self._owed % 1.0
            let_in = 0 if closed else min(came, round(room * TURN))
            for _ in range(let_in):
                self.valve.decided("m", name, Reason.ADMITTED)
            for _ in range(came - let_in):
                self.valve.decided("m", name, closed or reason)
            self.seen += came
            self.now += TURN
            why = {} if closed is None else {("m", name): closed}
            shut = self.valve.turn(self.now, why).get(("m", name))
        return shut


def test_a_flood_of_a_closed_class_is_shut_out_within_a_tenth_of_a_second() -> None:
    flood = Flood()
    flood.goes_on(TURN, 0)
    shut = flood.goes_on(2 * TURN, 2500, closed=Reason.MODE_PROTECT)
    assert shut is not None
    assert shut.reason is Reason.MODE_PROTECT
    assert shut.share > 0.9


def test_so_many_refusals_a_second_still_come_to_us() -> None:
    flood = Flood()
    flood.goes_on(2, 2500, closed=Reason.KV_WATERMARK)
    flood.goes_on(4, 2500, closed=Reason.KV_WATERMARK)
    assert flood.seen / 4 == pytest.approx(50, rel=0.15)


def test_what_would_be_let_in_comes_to_us() -> None:
    flood = Flood()
    flood.goes_on(2, 2500, room=300)
    shut = flood.goes_on(4, 2500, room=300)
    assert shut is not None
    assert shut.reason is Reason.CONCURRENCY
    assert flood.seen / 4 == pytest.approx(350, rel=0.15)


def test_under_its_threshold_everything_comes_to_us() -> None:
    flood = Flood()
    assert flood.goes_on(3, 95, closed=Reason.MODE_PROTECT) is None
    assert flood.goes_on(3, 1000, room=1000) is None


def test_it_stays_shut_at_a_rate_that_would_not_shut_it() -> None:
    flood = Flood()
    flood.goes_on(1, 2000, closed=Reason.MODE_PROTECT)
    assert flood.goes_on(4, 75, closed=Reason.MODE_PROTECT) is not None
    assert flood.goes_on(4, 40, closed=Reason.MODE_PROTECT) is None


def test_it_opens_when_the_flood_is_over() -> None:
    flood = Flood()
    assert flood.goes_on(1, 5000, closed=Reason.MODE_PROTECT) is not None
    assert flood.goes_on(2, 0, closed=Reason.MODE_PROTECT) is None


def test_it_opens_when_there_is_room_again() -> None:
    flood = Flood()
    assert flood.goes_on(1, 1000, closed=Reason.MODE_PROTECT) is not None
    assert flood.goes_on(6, 1000, room=2000) is None


def test_refusals_of_tenants_and_bodies_shut_nothing() -> None:
    for reason in (Reason.RATE_LIMITED, Reason.BAD_REQUEST, Reason.AGENT_LOOP):
        assert reason not in REFUSALS
        assert Flood().goes_on(2, 2500, reason=reason) is None


def test_a_class_is_not_shut_while_a_lower_one_is_let_in() -> None:
    flood = Flood()
    flood.goes_on(1, 10, room=100)
    for _ in range(5):
        flood.valve.decided("m", "P2", Reason.ADMITTED)
        assert flood.goes_on(TURN, 2500, name="P1") is None
    assert flood.goes_on(1, 2500, name="P1", closed=Reason.MODE_TRANSACTIONS_ONLY) is not None


def test_a_class_that_is_closed_is_shut_even_so() -> None:
    flood = Flood()
    flood.goes_on(TURN, 100, room=100)
    assert flood.goes_on(2 * TURN, 2500, name="P1", closed=Reason.KV_WATERMARK) is not None


def test_what_it_does_not_know_is_nothing_to_it() -> None:
    valve = Valve(["m"], CLASSES, through=1.0)
    for turn in range(20):
        for _ in range(1000):
            valve.decided("m", "P0", Reason.MODE_PROTECT)
            valve.decided("elsewhere", "P2", Reason.MODE_PROTECT)
        assert valve.turn(turn * TURN, {}) == {}
    assert list(valve.rates()) == [("m", "P1", 0.0), ("m", "P2", 0.0)]


def test_a_clock_that_stands_still_changes_nothing() -> None:
    flood = Flood()
    shut = flood.goes_on(1, 2500, closed=Reason.MODE_PROTECT)
    assert flood.valve.turn(flood.now, {}) == {("m", "P2"): shut}
    assert repr(flood.valve).startswith("<Valve {('m', 'P2'): Shut(share=0.9")


STEPS = st.lists(
    st.tuples(
        st.floats(0.001, 2.0),
        st.dictionaries(
            st.sampled_from(("P0", "P1", "P2")),
            st.tuples(
                st.integers(0, 300),
                st.dictionaries(st.sampled_from(list(Reason)), st.integers(0, 300), max_size=3),
            ),
        ),
        st.dictionaries(
            st.sampled_from((("m", "P1"), ("m", "P2"))),
            st.sampled_from((Reason.MODE_PROTECT, Reason.KV_WATERMARK)),
        ),
    ),
    max_size=30,
)


@given(STEPS, st.floats(1.0, 100.0))
def test_whatever_comes_its_rules_hold(
    steps: list[
        tuple[float, dict[str, tuple[int, dict[Reason, int]]], dict[tuple[str, str], Reason]]
    ],
    through: float,
) -> None:
    valve, now, let_in_at = Valve(["m"], CLASSES, through=through), 0.0, -math.inf
    valve.turn(now, {})
    for seconds, came, closed in steps:
        now += seconds
        for name, (let_in, refused) in came.items():
            for _ in range(let_in):
                valve.decided("m", name, Reason.ADMITTED)
            for reason, count in refused.items():
                for _ in range(count):
                    valve.decided("m", name, reason)
        lower = came.get("P2", (0, {}))
        if lower[0] or any(n for reason, n in lower[1].items() if reason not in REFUSALS):
            let_in_at = now
        shut = valve.turn(now, closed)
        assert {name for _, name in shut} <= {"P1", "P2"}
        for (pool, name), each in shut.items():
            assert 0.0 < each.share <= MOST
            assert each.reason in REFUSALS
            assert each.reason is closed.get((pool, name), each.reason)
        if now - let_in_at < 1.0 and ("m", "P1") not in closed:
            assert ("m", "P1") not in shut
        for _, _, rate in valve.rates():
            assert rate >= 0.0
            assert math.isfinite(rate)
