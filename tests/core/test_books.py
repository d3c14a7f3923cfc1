"""The books of a pool under any order of events: nothing is lost, nothing opens by itself."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.core.capacity import Demand, Placement, Pool, PoolLimits, Reading, Shortage
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Action, Candidate, Controller
from extproc.core.outcomes import End, Outcome
from extproc.core.promises import Promises

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12, prefill_wait=2.0)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.80, prefill_wait=2.0)
CLASSES = (P0, P1, P2)
BLOCKS, BLOCK = 500, 16
NAMES = ("a", "b", "c")

demands = st.builds(
    Demand,
    service_class=st.sampled_from(CLASSES),
    task=st.sampled_from(["", "chat"]),
    prompt=st.integers(1, 3000),
    max_output=st.none() | st.integers(0, 1000),
    choices=st.integers(1, 3),
)
readings = st.builds(
    Reading,
    kv_usage=st.floats(0, 1),
    blocks=st.sampled_from([None, BLOCKS, BLOCKS // 2]),
    block_size=st.sampled_from([None, BLOCK]),
    running=st.integers(0, 50),
    waiting=st.integers(0, 20),
    preemptions=st.integers(0, 5),
    generated=st.none() | st.integers(0, 10_000),
    prompted=st.none() | st.integers(0, 10_000),
)
exchanges = st.integers(0, 15).map(lambda number: f"x{number}")
endpoints = st.sampled_from(NAMES)


class Books(RuleBasedStateMachine):
    """Everything that can happen to a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = Pool("qwen", PoolLimits(100, 1.0, 11.0, pick=self.pick), CLASSES)

    pick = True

    @rule(endpoint=endpoints)
    def join(self, endpoint: str) -> None:
        self.pool.join(endpoint)

    @rule(endpoint=endpoints)
    def leave(self, endpoint: str) -> None:
        self.pool.leave(endpoint, self.now)

    @rule(exchange=exchanges, demand=demands)
    def call(self, exchange: str, demand: Demand) -> None:
        found = self.pool.place(demand, self.now)
        assert found == self.pool.place(demand, self.now)
        if isinstance(found, Placement):
            self.pool.reserve(exchange, demand, found.endpoint, self.now)

    @rule(exchange=exchanges, demand=demands)
    def force(self, exchange: str, demand: Demand) -> None:
        found = self.pool.squeeze(demand, self.now)
        self.pool.reserve(exchange, demand, found.endpoint, self.now)

    @rule(exchange=exchanges, tokens=st.none() | st.integers(0, 500))
    def end(self, exchange: str, tokens: int | None) -> None:
        before = self.pool.in_flight
        held = self.pool.release(exchange)
        assert self.pool.release(exchange) is None
        assert self.pool.in_flight == before - (held is not None)
        if held is not None:
            self.pool.learn(held, End(Outcome.COMPLETED, 10, tokens, 1.0))

    @rule(exchange=exchanges, endpoint=endpoints)
    def move(self, exchange: str, endpoint: str) -> None:
        before = self.pool.in_flight
        self.pool.moved(exchange, endpoint, self.now)
        assert self.pool.in_flight == before

    @rule(endpoint=endpoints)
    def send(self, endpoint: str) -> None:
        self.pool.sending(endpoint, self.now)

    @rule(endpoint=endpoints, reading=readings, late=st.floats(0, 0.5))
    def observe(self, endpoint: str, reading: Reading, late: float) -> None:
        self.pool.observe(endpoint, reading, read_at=self.now - late, now=self.now)
        state = self.pool.endpoints.get(endpoint)
        if state is not None and state.reading is reading and late < 0.4:
            found = state.account(self.now)
            if found is not None:
                assert found.free <= 1.0 - reading.kv_usage + 1e-6

    @rule(endpoint=endpoints)
    def fail(self, endpoint: str) -> None:
        self.pool.fail(endpoint, "timeout")

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def every_promise_is_booked_once_where_it_says(self) -> None:
        booked = {p.exchange: n for n, s in self.pool.endpoints.items() for p in s.promises}
        assert sum(len(s.promises) for s in self.pool.endpoints.values()) == len(booked)
        said = {p.exchange: p.endpoint for p in self.pool.promises() if p.endpoint is not None}
        assert booked == said

    @invariant()
    def sums_are_those_of_the_promises(self) -> None:
        for state in self.pool.endpoints.values():
            anew = Promises(lambda demand, generated: 0.0, 0.0)
            for promise in state.promises:
                anew._insert(promise)
            assert math.isclose(state.promises.peak, anew.peak, rel_tol=1e-9, abs_tol=1e-6)
            assert state.promises.sequences == anew.sequences

    @invariant()
    def numbers_make_sense(self) -> None:
        load = self.pool.load(self.now)
        assert load.free is None or 0.0 <= load.free <= 1.0
        assert load.predicted is None or -math.inf < load.predicted <= 1.0
        assert 1.0 <= load.tightening <= 2.0
        states = [self.pool.is_closed(each, self.now) for each in CLASSES]
        assert states == sorted(states)
        assert 0.1 <= self.pool.quantile.value <= 0.9
        for state in self.pool.endpoints.values():
            assert math.isfinite(state.bias)
            assert state.promises.peak >= 0.0
            assert state.unprefilled(self.now) >= 0.0
            assert state.prefill_rate >= 0.0
            assert state.promises.clock.pace >= 0.0


class BooksOfEnvoy(Books):
    """The same where Envoy chooses."""

    pick = False


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
BooksOfEnvoy.TestCase.settings = Books.TestCase.settings
TestBooks = Books.TestCase
TestBooksOfEnvoy = BooksOfEnvoy.TestCase


def pool_with(pick: bool, used: float, calls: list[Demand]) -> Pool:
    """A pool of two endpoints, read once, with calls that are in whatever they come to."""
    made = Pool("qwen", PoolLimits(100, 1.0, 11.0, pick=pick), CLASSES)
    for name in NAMES[:2]:
        made.join(name)
        reading = Reading(used, BLOCKS, BLOCK, running=0, waiting=0, preemptions=0)
        made.observe(name, reading, read_at=0.0, now=0.0)
    for number, demand in enumerate(calls):
        made.reserve(f"x{number}", demand, made.squeeze(demand, 0.0).endpoint, 0.0)
    return made


@given(st.booleans(), st.floats(0, 1), st.lists(demands, max_size=8), demands)
def test_more_load_never_leaves_more_free(
    pick: bool, used: float, calls: list[Demand], more: Demand
) -> None:
    made = pool_with(pick, used, calls)
    before = made.load(0.0).predicted
    made.reserve("more", more, made.squeeze(more, 0.0).endpoint, 0.0)
    after = made.load(0.0).predicted

    assert before is not None
    assert after is not None
    assert after <= before + 1e-6


@given(st.booleans(), st.lists(demands, max_size=8), st.floats(0.87, 1.0))
def test_after_a_jump_in_observed_usage_nothing_is_let_in(
    pick: bool, calls: list[Demand], used: float
) -> None:
    made = pool_with(pick, 0.0, calls)
    for name in NAMES[:2]:
        reading = Reading(used, BLOCKS, BLOCK, running=0, waiting=0, preemptions=0)
        made.observe(name, reading, read_at=0.2, now=0.2)

    assert isinstance(made.place(Demand(P2), 0.2), Shortage)
    assert isinstance(made.place(Demand(P1), 0.2), Shortage) or used < 0.92
    if not calls:
        assert made.is_closed(P2, 0.2)
        assert made.is_closed(P1, 0.2) or used < 0.92


@given(
    st.booleans(),
    st.floats(0, 1),
    st.lists(demands, max_size=8),
    st.lists(st.floats(0, 3), max_size=12),
)
def test_a_dead_scrape_never_opens(
    pick: bool, used: float, calls: list[Demand], waits: list[float]
) -> None:
    made = pool_with(pick, used, calls)
    now, closed = 0.0, {each.name for each in CLASSES if made.is_closed(each, 0.0)}
    for wait in waits:
        now += wait
        if now > 11.0:  # what is unknown is judged by own accounting alone
            break
        for name in NAMES[:2]:
            made.fail(name, "timeout")
        still = {each.name for each in CLASSES if made.is_closed(each, now)}
        assert closed <= still
        closed = still


def fits(empty: Pool, demand: Demand) -> bool:
    """Say whether a call fits into an empty pool; what does not is left to the engine."""
    found = empty.place(demand, 0.0)
    mark = 0.0 if demand.service_class.strict else demand.service_class.close
    return isinstance(found, Placement) and found.free is not None and found.free >= mark


@given(st.booleans(), st.floats(0, 1), st.lists(demands, max_size=30))
def test_no_class_is_refused_while_a_lower_one_is_let_in(
    pick: bool, used: float, calls: list[Demand]
) -> None:
    made = pool_with(pick, used, [])
    empty = pool_with(pick, 0.0, [])
    for number, demand in enumerate(calls):
        found = made.place(demand, 0.0)
        if isinstance(found, Placement):
            made.reserve(f"x{number}", demand, found.endpoint, 0.0)
        elif fits(empty, demand):
            for lower in CLASSES[demand.service_class.rank + 1 :]:
                assert isinstance(made.place(Demand(lower, "", 1, 1), 0.0), Shortage)


@given(st.booleans(), st.floats(0, 1), st.lists(demands, max_size=30))
def test_a_refused_call_leaves_nothing_and_every_end_gives_all_back(
    pick: bool, used: float, calls: list[Demand]
) -> None:
    made = pool_with(pick, used, [])
    controller = Controller({"qwen": made}, ())
    admitted = []
    for number, demand in enumerate(calls):
        who = Classification("t", demand.task, demand.service_class, None, None, (), None, None)
        call = Candidate(
            f"x{number}", who, demand.prompt, 1, None, demand.max_output, demand.choices
        )
        verdict = controller.decide(call, "qwen", 0.0)
        if verdict.action is Action.ADMIT:
            admitted.append(call.id)
            assert (verdict.endpoint is not None) == pick
        else:
            assert not demand.service_class.strict
    assert made.in_flight == len(admitted)
    for exchange in admitted:
        controller.release(exchange, "qwen")
        controller.release(exchange, "qwen")

    assert made.in_flight == 0
    assert [state.promises.peak for state in made.endpoints.values()] == [0.0, 0.0]
