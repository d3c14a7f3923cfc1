"""What makes the breaker trip, what it does then, and how it comes back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from extproc.core.breaker import Breaker, BreakerGate, Held, Key, Rules, State, key_of
from extproc.core.capacity import Pool
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.reasons import Reason

KEY = Key("qwen", "acme", "chat")
RULES = Rules(relearn=100_000.0)


class Traffic:
    """One call a second of a tenant's task, at a clock that runs with the calls."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.breaker = Breaker(rules)
        self.now = 0.0
        self._ids = 0

    def run(self, calls: int, length: Callable[[], int], key: Key = KEY) -> int:
        """Send calls and tell how many were let in; each ends half a second later."""
        passed = 0
        for _ in range(calls):
            self._ids += 1
            limit = self.breaker.limit(key, self.now)
            ident = f"x{self._ids}"
            if self.breaker.admit(key, ident, self.now) is None:
                passed += 1
                tokens = min(length(), limit or 1 << 20)
                end = self.now + 0.5
                self.breaker.ended(key, tokens, admitted_at=self.now, now=end)
                self.breaker.done(ident)
            self.now += 1.0
        return passed

    def state(self) -> State:
        return dict(self.breaker.tripped()).get(KEY, State.CLOSED)


def around(tokens: int, sigma: float = 0.5, seed: int = 1) -> Callable[[], int]:
    rng = random.Random(seed)
    return lambda: max(1, round(tokens * rng.lognormvariate(0.0, sigma)))


def tripped(rules: Rules = RULES) -> Traffic:
    traffic = Traffic(rules)
    traffic.run(200, around(100))
    while traffic.state() is State.CLOSED:
        traffic.run(1, around(800))
    return traffic


def opened(rules: Rules = RULES) -> Traffic:
    traffic = tripped(rules)
    while traffic.state() is State.CLAMPED:
        traffic.run(1, around(800))
    return traffic


def test_a_sudden_lasting_rise_clamps_within_some_twenty_calls() -> None:
    traffic = Traffic()
    traffic.run(200, around(100))
    calls = 0
    while traffic.state() is State.CLOSED:
        assert traffic.run(1, around(400, seed=calls)) == 1
        calls += 1
    assert 10 <= calls <= 20
    assert traffic.breaker.limit(KEY, traffic.now) == pytest.approx(2 * 113, rel=0.2)


def test_it_takes_as_long_as_a_rise_must_last_however_fast_calls_come() -> None:
    breaker = Breaker(Rules(sustain=10.0))
    for index in range(100):
        breaker.ended(KEY, 100, admitted_at=0.0, now=index * 0.01)
    for index in range(1000):
        breaker.ended(KEY, 2000, admitted_at=1.0, now=1.0 + index * 0.0099)
    assert breaker.idle
    breaker.ended(KEY, 2000, admitted_at=1.0, now=11.1)
    assert not breaker.idle


def test_a_single_outlier_trips_nothing() -> None:
    traffic = Traffic()
    traffic.run(100, lambda: 40)
    traffic.run(1, lambda: 1 << 20)
    traffic.run(200, lambda: 40)
    assert traffic.breaker.entered == {}


def test_long_tasks_are_long_from_the_start() -> None:
    traffic = Traffic()
    traffic.run(300, around(100), Key("qwen", "acme", "chat"))
    traffic.run(300, around(1800), Key("qwen", "acme", "report"))
    traffic.run(300, around(1800), Key("qwen", "other", "chat"))
    assert traffic.breaker.entered == {}


def test_lengths_that_grow_slowly_are_learned() -> None:
    traffic = Traffic()
    traffic.run(200, around(100))
    for index in range(100):
        middle = 100 * 1.02**index
        traffic.run(30, around(round(middle), seed=index))
    assert traffic.breaker.entered == {}


def test_false_alarms_are_as_rare_as_they_may_be() -> None:
    traffic = Traffic(Rules(alarm=1e6, sustain=0.0))
    traffic.run(50_000, around(150, sigma=1.0, seed=11))
    assert traffic.breaker.entered == {}


def test_what_is_normal_under_the_clamp_closes_it() -> None:
    traffic = tripped()
    assert traffic.state() is State.CLAMPED
    assert traffic.run(10, around(90)) == 10
    assert traffic.state() is State.CLOSED


def test_what_stays_long_under_the_clamp_is_shed_after_a_while() -> None:
    traffic = tripped()
    began = traffic.now
    while traffic.state() is State.CLAMPED:
        assert traffic.run(1, around(800)) == 1
    assert traffic.state() is State.OPEN
    assert traffic.now - began == pytest.approx(30.0, abs=2.0)
    held = traffic.breaker.admit(KEY, "x", traffic.now)
    assert isinstance(held, Held)
    assert traffic.breaker.limit(KEY, traffic.now) == math.ceil(held.allowed)


def test_ends_of_calls_that_came_before_the_clamp_shed_nobody() -> None:
    traffic = tripped()
    for _ in range(100):
        traffic.now += 0.5
        traffic.breaker.ended(KEY, 2000, admitted_at=0.0, now=traffic.now)
    assert traffic.state() is State.CLAMPED


def test_probes_that_are_normal_close_it() -> None:
    traffic = opened()
    assert traffic.run(29, around(100)) == 0
    traffic.now += 1.0
    assert traffic.run(12, around(90)) == 12
    assert traffic.state() is State.CLOSED


def test_probes_that_are_long_open_it_for_twice_as_long_up_to_the_longest() -> None:
    traffic = opened(Rules(open_for=30.0, longest=100.0, relearn=100_000.0))
    shed: list[int] = []
    for _ in range(4):
        count = 0
        while traffic.state() is State.OPEN:
            count += 1 - traffic.run(1, around(800))
        shed.append(count)
        while traffic.state() is State.HALF_OPEN:
            traffic.run(1, around(800))
    assert shed == [30, 60, 100, 100]


def test_only_so_many_probes_are_in_flight() -> None:
    traffic = opened()
    traffic.now += 30.0
    answers = [traffic.breaker.admit(KEY, f"p{i}", traffic.now) for i in range(5)]
    assert [answer is None for answer in answers] == [True, True, True, False, False]


def test_a_lost_probe_makes_room_for_the_next() -> None:
    traffic = opened()
    traffic.now += 30.0
    for index in range(50):
        assert traffic.breaker.admit(KEY, f"p{index}", traffic.now) is None
        traffic.breaker.done(f"p{index}")
        traffic.breaker.done(f"p{index}")
    assert traffic.state() is State.HALF_OPEN


def test_without_records_it_falls_back_to_the_clamp_and_then_to_nothing() -> None:
    traffic = opened()
    traffic.now += 30.0
    assert traffic.breaker.admit(KEY, "lost", traffic.now) is None
    traffic.now += 60.0
    assert traffic.breaker.admit(KEY, "next", traffic.now) is None
    assert traffic.state() is State.CLAMPED
    traffic.now += 60.0
    assert traffic.breaker.limit(KEY, traffic.now) is None
    assert traffic.state() is State.CLOSED


def test_a_rise_that_stays_is_the_new_normal() -> None:
    traffic = tripped(Rules(relearn=3600.0))
    traffic.run(3610, around(800))
    assert traffic.state() is State.CLOSED
    assert traffic.run(1000, around(800)) == 1000
    assert traffic.breaker.idle


def test_a_probe_that_ends_after_the_breaker_was_forgotten_does_no_harm() -> None:
    traffic = opened(Rules(relearn=70.0))
    traffic.now += 30.0
    assert traffic.breaker.admit(KEY, "p", traffic.now) is None
    traffic.now += 70.0
    assert traffic.breaker.admit(KEY, "q", traffic.now) is None
    assert traffic.state() is State.CLOSED
    traffic.breaker.done("p")


def test_strict_classes_are_clamped_and_never_shed() -> None:
    traffic = opened()
    assert traffic.breaker.limit(KEY, traffic.now) is not None
    assert traffic.breaker.admit(KEY, "x", traffic.now, strict=True) is None


def test_memory_is_bounded_with_100_000_tenants() -> None:
    breaker = Breaker(RULES, capacity=1000)
    for index in range(100_000):
        breaker.ended(Key("qwen", f"t{index}", ""), 100, admitted_at=0.0, now=0.0)
    assert len(breaker) == 1000
    assert repr(breaker) == "<Breaker: 1000 closed, 0 tripped>"


def test_names_that_come_once_do_not_push_out_what_is_in_use() -> None:
    breaker = Breaker(RULES, capacity=10)
    for index in range(1000):
        breaker.ended(KEY, 100, admitted_at=0.0, now=float(index))
        breaker.ended(Key("qwen", f"t{index}", ""), 100, admitted_at=0.0, now=float(index))
    for index in range(40):
        breaker.ended(KEY, 2000, admitted_at=0.0, now=1000.0 + index)
    assert [key for key, _ in breaker.tripped()] == [KEY]


@pytest.fixture
def candidate() -> Callable[[ServiceClass], Candidate]:
    def make(service_class: ServiceClass) -> Candidate:
        who = Classification("acme", "chat", service_class, 2048, None, (), None, None)
        return Candidate("x", who, prompt_tokens=10, body_bytes=40)

    return make


def test_the_gate_refuses_with_what_is_allowed_and_what_there_was(
    candidate: Callable[[ServiceClass], Candidate],
    pool_of: Callable[..., Pool],
    classes: tuple[ServiceClass, ...],
) -> None:
    pool = pool_of("e")
    assert BreakerGate(Breaker(RULES))(candidate(classes[2]), pool, 0.0) is None
    traffic = opened()
    gate = BreakerGate(traffic.breaker)
    refusal = gate(candidate(classes[2]), pool, traffic.now)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.BREAKER_OUTPUT_LENGTH
    assert refusal.threshold == math.floor((refusal.threshold or 0) + 0.5)
    assert 150 < (refusal.threshold or 0) < 350
    assert gate(candidate(classes[0]), pool, traffic.now) is None
    assert key_of("qwen", candidate(classes[0]).classification) == KEY


def test_a_meter_tells_its_state() -> None:
    traffic = tripped()
    [meter] = traffic.breaker._tripped.values()
    assert repr(meter).startswith("<Meter clamped: <Baseline: ")
