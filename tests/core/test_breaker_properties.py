"""Whatever comes in whatever order: the breaker keeps its rules."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.breaker import TRANSITIONS, Breaker, Key, Rules, Signal, State

KEYS = [Key("qwen", tenant, task) for tenant, task in itertools.product("ab", "xy")]
RULES = Rules(alarm=1e3, sustain=1.0, clamp_for=2.0, open_for=5.0, longest=40.0, relearn=600.0)


def test_every_state_can_be_left_and_leads_back_to_closed() -> None:
    reachable = {State.CLOSED}
    for _ in State:
        reachable |= {before for (before, _), after in TRANSITIONS.items() if after in reachable}
    assert reachable == set(State)
    # Time alone leads out of every state in which calls are held back.
    by_time = {Signal.ELAPSED, Signal.SILENT, Signal.RELEARNED}
    for state in set(State) - {State.CLOSED}:
        assert any(before is state and signal in by_time for before, signal in TRANSITIONS)
        assert TRANSITIONS[state, Signal.RELEARNED] is State.CLOSED


class Any(RuleBasedStateMachine):
    """Calls that come, end, get lost or are never reported, and time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(RULES, capacity=3)
        self.now = 0.0
        self.ids = 0
        self.running: dict[str, tuple[Key, float]] = {}

    @rule(key=st.sampled_from(KEYS))
    def call(self, key: Key) -> None:
        self.ids += 1
        limit = self.breaker.limit(key, self.now)
        assert limit is None or limit >= 64
        if self.breaker.admit(key, str(self.ids), self.now) is None:
            self.running[str(self.ids)] = key, self.now

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 5000))
    def complete(self, data: st.DataObject, tokens: int) -> None:
        ident = data.draw(st.sampled_from(sorted(self.running)))
        key, came = self.running.pop(ident)
        self.breaker.ended(key, tokens, admitted_at=came, now=self.now)
        self.breaker.done(ident)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[ident]
        self.breaker.done(ident)

    @rule(
        key=st.sampled_from(KEYS),
        tokens=st.sampled_from((20, 40, 100, 400, 2000)),
        times=st.integers(1, 80),
    )
    def stretch(self, key: Key, tokens: int, times: int) -> None:
        for _ in range(times):
            self.now += 0.5
            self.breaker.ended(key, tokens, admitted_at=self.now, now=self.now)

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def few_probes(self) -> None:
        for meter in [*self.breaker._tripped.values(), *self.breaker._closed.values()]:
            assert 0 <= meter.probes <= RULES.probes

    @invariant()
    def bounded(self) -> None:
        assert len(self.breaker) <= 6

    def teardown(self) -> None:
        for ident in self.running:
            self.breaker.done(ident)
        assert not self.breaker._probes
        # It cannot be stuck: with nothing heard for as long as a rise may last, everybody passes.
        self.now += RULES.relearn
        for key in KEYS:
            assert self.breaker.admit(key, "last", self.now) is None
            assert self.breaker.limit(key, self.now) is None
        assert self.breaker.idle


Any.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAny = Any.TestCase


@given(
    st.lists(st.integers(1, 4096), min_size=60, max_size=300),
    st.integers(0, 1 << 30),
    st.integers(0, 59),
)
def test_no_single_output_trips_what_did_not_trip_without_it(
    lengths: list[int], outlier: int, place: int
) -> None:
    """From a baseline with no evidence of a rise yet."""
    breaker = Breaker(Rules(sustain=0.0))
    key = KEYS[0]
    for now, tokens in enumerate(lengths):
        breaker.ended(key, tokens, admitted_at=0.0, now=float(now))
    if not breaker.idle or breaker._closed[key].evidence > 0.0:
        return
    breaker.ended(key, outlier, admitted_at=0.0, now=1000.0)
    assert breaker.idle
