"""The queue against a naive model: whatever comes, leaves and goes, in whatever order."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.core import queue as module
from extproc.core.classes import ServiceClass
from extproc.core.fair_line import Waiting
from extproc.core.lane import SHARE_WINDOW, TICKET_SHARE
from extproc.core.queue import Dispatch, Queue, Queued, QueueLimits, Refused, Shed
from extproc.core.reasons import Reason

CLASSES = (
    ServiceClass("P0", 0, strict=True, max_wait=4.0),
    ServiceClass("P1", 1, weight=3.0, max_wait=2.0),
    ServiceClass("P2", 2, weight=1.0, max_wait=8.0),
    ServiceClass("P3", 3, weight=1.0, max_wait=0.0),
)
LIMITS = QueueLimits(max_calls=16, max_bytes=1000)
RANKS = st.sampled_from([0, 1, 1, 1, 2, 2, 2, 3])
CALLS = st.tuples(
    RANKS,
    st.sampled_from("abc"),
    st.integers(1, 30),
    st.integers(0, 120),
    st.one_of(st.none(), st.none(), st.floats(0, 20)),
)
"""Rank, tenant, cost, size, and the age of the ticket where there is one."""


@dataclass
class Known:
    """A waiting call in the model."""

    call: Waiting
    number: int
    offered: float
    passes: int = 0

    @property
    def deadline(self) -> float:
        return self.offered + self.call.service_class.max_wait


class Model:
    """What should be, by plain lists."""

    def __init__(self) -> None:
        self.waiting: dict[str, Known] = {}
        self.counters: dict[tuple[int, str], int] = {}
        self.last = dict.fromkeys(range(len(CLASSES)), 0)
        self.served: list[tuple[float, Waiting]] = []
        self.short: set[int] = set()

    def of(self, rank: int) -> list[Known]:
        return [each for each in self.waiting.values() if each.call.service_class.rank == rank]

    def add(self, known: Known) -> None:
        rank, tenant = known.call.service_class.rank, known.call.tenant
        active = {each.call.tenant for each in self.of(rank)}
        if tenant not in active:
            least = min((self.counters[rank, each] for each in active), default=self.last[rank])
            self.counters[rank, tenant] = max(self.counters.get((rank, tenant), 0), least)
        self.waiting[known.call.id] = known

    def remove(self, ident: str) -> Known:
        known = self.waiting.pop(ident)
        rank = known.call.service_class.rank
        if not self.of(rank):
            self.last[rank] = self.counters[rank, known.call.tenant]
            self.short.discard(rank)
        return known

    def window(self, rank: int, now: float, *, ticketed: bool = False) -> float:
        return sum(
            call.cost * math.exp((at - now) / SHARE_WINDOW)
            for at, call in self.served
            if call.service_class.rank == rank and (call.ticketed or not ticketed)
        )

    def orders(self, rank: int, now: float) -> list[list[Known]]:
        """Return in which order a class's tenants may come: tickets or others first."""
        lines = []
        for ticketed in (True, False):
            heads: dict[str, Known] = {}
            for each in sorted(self.of(rank), key=lambda known: (known.call.since, known.number)):
                if each.call.ticketed is ticketed:
                    heads.setdefault(each.call.tenant, each)
            lines.append(heads)
        share = TICKET_SHARE * self.window(rank, now)
        tickets = self.window(rank, now, ticketed=True)
        close = math.isclose(tickets, share, rel_tol=1e-9, abs_tol=1e-9)
        tickets_first = {
            ordinary is None
            or (ticket is not None and within and ticket.call.since < ordinary.call.since)
            for within in ({True, False} if close else {tickets <= share})
            for ticket in self._first(lines[0])
            for ordinary in self._first(lines[1])
        }
        return [
            [known for line in (lines if first else lines[::-1]) for known in line.values()]
            for first in tickets_first
        ]

    def counter(self, known: Known) -> int:
        return self.counters[known.call.service_class.rank, known.call.tenant]

    def _first(self, heads: dict[str, Known]) -> list[Known] | list[None]:
        """Return whose turn it may be: those with the least counter."""
        least = min(map(self.counter, heads.values()), default=0)
        return [each for each in heads.values() if self.counter(each) == least] or [None]


class QueueMachine(RuleBasedStateMachine):
    """Offers, leaves, time and room in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(LIMITS, CLASSES)
        self.model = Model()
        self.now = 100.0
        self.number = 0
        self.offered: set[str] = set()
        self.ended: Counter[str] = Counter()
        self.room = 0
        self.displaced: list[str] = []
        self.ranks: dict[str, int] = {}
        self.stuck: set[int] = set()

    @rule(calls=st.lists(CALLS, min_size=1, max_size=6))
    def offer(self, calls: list[tuple[int, str, int, int, float | None]]) -> None:
        for rank, tenant, cost, size, age in calls:
            self._offer(rank, tenant, cost, size, age)

    def _offer(self, rank: int, tenant: str, cost: int, size: int, age: float | None) -> None:
        self.number += 1
        service_class = CLASSES[rank]
        call = Waiting(
            str(self.number),
            tenant,
            service_class,
            cost,
            size,
            self.now - (age or 0.0),
            ticketed=age is not None,
        )
        ahead = [
            each for each in self.model.waiting.values() if each.call.service_class.rank <= rank
        ]
        own = [each for each in self.model.of(rank) if each.call.tenant == tenant]
        fits = len(own) + 1 <= LIMITS.max_calls - len(ahead) and sum(
            each.call.size for each in own
        ) + size <= LIMITS.max_bytes - sum(each.call.size for each in ahead)
        wait = (
            0.0 if age is not None else self.queue.predicted_wait(service_class, tenant, self.now)
        )

        answer = self.queue.offer(call, self.now)

        self.offered.add(call.id)
        self.ranks[call.id] = rank
        if isinstance(answer, Refused):
            self.ended[call.id] += 1
            hasty = not service_class.max_wait
            expected = Reason.PREDICTED_WAIT if fits or hasty else Reason.QUEUE_FULL
            assert answer.reason is expected
            if fits:
                assert wait > service_class.max_wait or hasty
            if self.model.of(rank):
                self.model.short.add(rank)
            return
        assert fits
        assert wait <= service_class.max_wait
        assert answer == Queued(self.now + service_class.max_wait, wait)
        self.model.add(Known(call, self.number, self.now))
        self._displace(rank)

    def _displace(self, rank: int) -> None:
        """Take the newest of the lowest until the bounds hold; they are told in the next pump."""
        waiting = self.model.waiting
        while len(waiting) > LIMITS.max_calls or (
            sum(each.call.size for each in waiting.values()) > LIMITS.max_bytes
        ):
            lowest = max(each.call.service_class.rank for each in waiting.values())
            assert lowest > rank
            newest = max(self.model.of(lowest), key=lambda known: known.number)
            self.model.remove(newest.call.id)
            if self.model.of(lowest):
                self.model.short.add(lowest)
            self.displaced.append(newest.call.id)

    @rule(choice=st.integers(0, 1000))
    def leave(self, choice: int) -> None:
        candidates = [*self.model.waiting, *self.displaced]
        if not candidates:
            assert not self.queue.leave("nobody", self.now)
            return
        ident = candidates[choice % len(candidates)]
        assert self.queue.leave(ident, self.now)
        assert not self.queue.leave(ident, self.now)
        self.ended[ident] += 1
        if ident in self.displaced:
            self.displaced.remove(ident)
        else:
            self.model.remove(ident)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(cost=st.integers(1, 40), rank=st.integers(1, 2))
    def pass_by(self, cost: int, rank: int) -> None:
        call = Waiting("-", "a", CLASSES[rank], cost, 0, self.now)
        self.queue.passed_by(CLASSES[rank], cost, self.now)
        self.model.served.append((self.now, call))

    @rule(room=st.integers(0, 100))
    def pump(self, room: int) -> None:
        self.room = room
        self.stuck.clear()
        model = self.model
        expired = [each for each in model.waiting.values() if each.deadline <= self.now]
        expired.sort(key=lambda known: (known.call.service_class.rank, known.number))
        expectation = [*self.displaced, *(each.call.id for each in expired)]
        barrier = min((self.ranks[ident] for ident in expectation), default=len(CLASSES))
        for each in expired:
            rank = each.call.service_class.rank
            model.remove(each.call.id)
            if model.of(rank):
                model.short.add(rank)
        out = self.queue.pump(self.now, partial(self._place, barrier=barrier, tried=[]))

        sheds = [each for each in out if isinstance(each, Shed)]
        goes = [each for each in out if isinstance(each, Dispatch)]
        assert out == [*sheds, *goes]
        assert [each.call.id for each in sheds] == expectation
        for shed in sheds:
            if shed.call.id in self.displaced:
                assert shed.reason is Reason.QUEUE_FULL
            else:
                assert shed.reason is Reason.QUEUE_DEADLINE
                assert shed.waited >= shed.call.service_class.max_wait
        for went in goes:
            assert went.waited < went.call.service_class.max_wait
            assert went.call.service_class.rank <= barrier
        self.displaced.clear()
        self.ended.update(each.call.id for each in out)
        self._check_no_room_is_left(barrier)

    def _place(self, call: Waiting, barrier: int, tried: list[str]) -> str | None:
        """Give what room there is, and check that it is this call's turn to be asked for."""
        rank = call.service_class.rank
        if tried and self.ranks[tried[-1]] != rank:
            self.stuck.add(self.ranks[tried[-1]])
            tried.clear()
        if not tried:
            self._check_class(rank, barrier)
        self._check_turn(call, tried)
        if call.cost > self.room:
            tried.append(call.id)
            return None
        self.room -= call.cost
        for ident in tried:
            self.model.waiting[ident].passes += 1
        self.model.counters[rank, call.tenant] += call.cost
        self.model.remove(call.id)
        self.model.served.append((self.now, call))
        tried.clear()
        return "endpoint"

    def _check_class(self, rank: int, barrier: int) -> None:
        """It is this class's turn."""
        assert rank <= barrier
        model = self.model
        for higher in range(rank):
            if not model.of(higher):
                continue
            oldest = min(each.deadline for each in model.of(higher))
            assert higher not in self.stuck
            assert not CLASSES[higher].strict
            assert higher not in model.short
            assert oldest - self.now > CLASSES[higher].max_wait / 2
        if CLASSES[rank].strict:
            return
        share = model.window(rank, self.now) / CLASSES[rank].weight
        for other in range(1, rank):
            if model.of(other):
                assert share <= model.window(other, self.now) / CLASSES[other].weight + 1e-9

    def _check_turn(self, call: Waiting, tried: list[str]) -> None:
        """Within the class it is this call's turn, those tried before it set aside."""
        rank = call.service_class.rank
        assert len(tried) <= (0 if CLASSES[rank].strict else module.LOOK_AHEAD)
        model = self.model
        assert all(model.waiting[each].passes < module.MOST_PASSES for each in tried)
        tenants = {model.waiting[each].call.tenant for each in tried}
        allowed = set()
        for order in model.orders(rank, self.now):
            left = [each for each in order if each.call.tenant not in tenants]
            tickets_first = order[0].call.ticketed
            line = [each for each in left if each.call.ticketed is tickets_first] or left
            least = min(model.counter(each) for each in line)
            allowed |= {each.call.id for each in line if model.counter(each) == least}
        assert call.id in allowed

    def _check_no_room_is_left(self, barrier: int) -> None:
        """The highest class that waits does not fit, or nothing may go below a shed one."""
        ranks = (rank for rank in range(len(CLASSES)) if self.model.of(rank))
        highest = next(ranks, None)
        if highest is None or highest > barrier:
            return
        first: set[int] = set()
        for order in self.model.orders(highest, self.now):
            line = [each for each in order if each.call.ticketed is order[0].call.ticketed]
            least = min(self.model.counter(each) for each in line)
            first |= {each.call.cost for each in line if self.model.counter(each) == least}
        assert max(first) > self.room

    @invariant()
    def nothing_is_lost_and_nothing_doubled(self) -> None:
        waiting = set(self.model.waiting) | set(self.displaced)
        assert self.offered == waiting | set(self.ended)
        assert not waiting & set(self.ended)
        assert all(times == 1 for times in self.ended.values())

    @invariant()
    def the_books_are_right(self) -> None:
        waiting = self.model.waiting.values()
        assert len(self.queue) == len(waiting) <= LIMITS.max_calls
        assert self.queue.bytes == sum(each.call.size for each in waiting) <= LIMITS.max_bytes
        assert [self.queue.depth(each) for each in CLASSES] == [
            len(self.model.of(each.rank)) for each in CLASSES
        ]
        deadline = min((each.deadline for each in waiting), default=math.inf)
        assert self.queue.next_deadline() == (-math.inf if self.displaced else deadline)
        for each in CLASSES:
            assert self.queue.holds_up(each) == any(
                self.model.of(rank) for rank in range(each.rank + 1)
            )

    def teardown(self) -> None:
        for ident in [*self.model.waiting, *self.displaced]:
            assert self.queue.leave(ident, self.now)
        assert (len(self.queue), self.queue.bytes) == (0, 0)
        for lane in self.queue._lanes:
            assert (len(lane.places), lane.size, lane._cost, lane._active) == (0, 0, 0, 0)
            assert not lane._ordinary._backlogs
            assert not lane._ordinary._heap
            assert not lane._ticketed._heap


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

WIDE = QueueLimits(max_calls=100_000, max_bytes=1 << 40)
COSTS = st.lists(st.integers(1, 500), min_size=1, max_size=40)


def backlog(queue: Queue, tenant: str, service_class: ServiceClass, costs: list[int]) -> None:
    for number, cost in enumerate(costs):
        ident = f"{service_class.name} {tenant} {number}"
        queue.offer(Waiting(ident, tenant, service_class, cost, 0, 0.0), 0.0)


def one_call(_call: Waiting, went: list[Waiting]) -> str | None:
    if went:
        return None
    went.append(_call)
    return "endpoint"


def served_one_by_one(queue: Queue) -> list[Waiting]:
    """Let one call go at a time, a tenth of a second after the other, until none waits."""
    served: list[Waiting] = []
    now = 0.0
    while len(queue):
        now += 0.1
        went: list[Waiting] = []
        queue.pump(now, partial(one_call, went=went))
        served += went
    return served


@given(costs=st.dictionaries(st.sampled_from("abcd"), COSTS, min_size=2))
def test_between_backlogged_tenants_service_differs_by_two_calls_at_most(
    costs: dict[str, list[int]],
) -> None:
    """Theorem 1 of the paper, in any interval: 2 · max(w_p · longest prompt, w_q · capacity)."""
    patient = ServiceClass("P1", 0, max_wait=1e9)
    queue = Queue(WIDE, (patient,))
    for tenant, each in costs.items():
        backlog(queue, tenant, patient, each)
    bound = 2 * max(max(each) for each in costs.values())
    left = {tenant: len(each) for tenant, each in costs.items()}
    got = dict.fromkeys(costs, 0)
    history = [dict(got)]

    for call in served_one_by_one(queue):
        got[call.tenant] += call.cost
        left[call.tenant] -= 1
        history.append(dict(got))
        if not all(left.values()):
            break

    for one in costs:
        for other in costs:
            differences = [each[one] - each[other] for each in history]
            assert max(differences) - min(differences) <= bound


@given(weights=st.tuples(st.integers(1, 8), st.integers(1, 8)), seed=st.integers(1, 50))
@settings(max_examples=20, deadline=None)
def test_classes_come_to_share_by_their_weights(weights: tuple[int, int], seed: int) -> None:
    high = ServiceClass("P1", 0, weight=weights[0], max_wait=1e9)
    low = ServiceClass("P2", 1, weight=weights[1], max_wait=1e9)
    queue = Queue(WIDE, (high, low))
    costs = [1 + (seed * number) % 50 for number in range(1200)]
    backlog(queue, "a", high, costs)
    backlog(queue, "a", low, costs)

    served = served_one_by_one(queue)[:1000]

    of_high = sum(call.cost for call in served if call.service_class is high)
    share = of_high / sum(call.cost for call in served)
    assert math.isclose(share, weights[0] / sum(weights), abs_tol=0.03)


@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 1), st.integers(1, 60)), min_size=1, max_size=80
    ),
    rooms=st.lists(st.integers(0, 40), min_size=1, max_size=80),
)
def test_no_class_is_shed_while_a_lower_one_goes(
    arrivals: list[tuple[int, float, int]], rooms: list[int]
) -> None:
    """From a tenth of a call's wait until it is shed, nothing of a lower class goes."""
    queue = Queue(WIDE, CLASSES)
    now = 0.0
    went: list[tuple[float, int]] = []
    for number, (rank, seconds, cost) in enumerate(arrivals):
        now += seconds
        call = Waiting(str(number), "abc"[number % 3], CLASSES[rank], cost, 0, now)
        queue.offer(call, now)
        left = rooms[number % len(rooms)]

        def place(asked: Waiting) -> str | None:
            nonlocal left
            if asked.cost > left:
                return None
            left -= asked.cost
            return "endpoint"

        for each in queue.pump(now, place):
            rank = each.call.service_class.rank
            if isinstance(each, Dispatch):
                went.append((now, rank))
            else:
                tenth = now - each.waited + each.call.service_class.max_wait / 10
                assert not any(at >= tenth and lower > rank for at, lower in went)
