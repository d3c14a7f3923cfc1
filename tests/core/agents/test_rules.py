"""What runs may do: through the life of their calls."""

from __future__ import annotations

import math
from typing import Any

import pytest

from extproc.core.agents.dependencies import Unknown
from extproc.core.agents.limits import RunLimits
from extproc.core.agents.rules import AgentGate, Agents, Kind, Policy
from extproc.core.agents.runs import CAPACITY, TASKS, Member, Owner
from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.reasons import Reason

P0, P1, P2 = ServiceClass("P0", 0, strict=True), ServiceClass("P1", 1), ServiceClass("P2", 2)
ACME = Owner("acme")
FREE = RunLimits(None, None, None, None, None, None, None)


class Desk:
    """Calls of agents at a clock that a test sets."""

    def __init__(self, capacity: int = CAPACITY, **policy: Any) -> None:
        self.agents = Agents(Policy(**policy), capacity=capacity)
        self.now = 0.0
        self.numbers = iter(range(1_000_000))

    def arrive(
        self,
        task: str = "",
        parent: str = "",
        *,
        after: tuple[str, ...] = (),
        run: str = "r",
        owner: Owner = ACME,
        print_: str = "",
        depth: int = 0,
        service_class: ServiceClass = P1,
    ) -> str:
        ident = f"x{next(self.numbers)}"
        member = Member(owner, run, task, parent, after, depth)
        self.waits = self.agents.arrive(
            ident, member, (print_ or ident).encode(), service_class, self.now
        )
        return ident

    def call(self, *args: Any, **more: Any) -> Refusal | str:
        """Bring a call up to its engine, and return its id; or say why not."""
        ident = self.arrive(*args, **more)
        return self.go(ident)

    def go(self, ident: str) -> Refusal | str:
        refusal = self.agents.ask(ident)
        if refusal is None:
            self.agents.admitted(ident, self.now)
            return ident
        self.agents.released(ident, self.now)
        return refusal

    def end(self, ident: Refusal | str, *, completed: bool = True, tokens: int = 0) -> None:
        assert isinstance(ident, str)
        self.agents.ended(ident, self.now, completed=completed, tokens=tokens)

    def done(self, *args: Any, tokens: int = 0, completed: bool = True, **more: Any) -> str:
        ident = self.call(*args, **more)
        assert isinstance(ident, str), ident
        self.end(ident, tokens=tokens, completed=completed)
        return ident


def reason(answer: Refusal | str) -> Reason | None:
    return answer.reason if isinstance(answer, Refusal) else None


def test_a_run_has_three_sub_agents_by_default() -> None:
    desk = Desk()
    desk.done("root")
    for name in ("a", "b", "c"):
        desk.done(name, "root")
    assert desk.call("d", "root") == Refusal(Reason.AGENT_FANOUT, 3, 4)
    # Those that are there go on, and so does the root.
    desk.done("a", "root")
    desk.done("root")
    # It costs nothing to have been refused.
    assert desk.call("e", "root") == Refusal(Reason.AGENT_FANOUT, 3, 4)


def test_sub_agents_that_were_turned_away_do_not_count() -> None:
    desk = Desk()
    desk.done("root")
    for index in range(5):
        desk.agents.released(desk.arrive(f"shed{index}", "root"), 0.0)
    for name in ("a", "b", "c"):
        desk.done(name, "root")


def test_sub_agents_that_come_at_once_are_counted_as_they_come() -> None:
    desk = Desk()
    answers = [desk.call(f"s{index}", "root") for index in range(10)]
    assert [reason(each) for each in answers] == [None] * 3 + [Reason.AGENT_FANOUT] * 7


def test_sub_agents_may_not_be_nested_too_deeply() -> None:
    desk = Desk(limits=RunLimits(sub_agents=None, depth=2))
    desk.done("root")
    desk.done("a", "root")
    desk.done("b", "a")
    assert desk.call("c", "b") == Refusal(Reason.AGENT_DEPTH, 2, 3)
    assert desk.call("d", "unknown", depth=7) == Refusal(Reason.AGENT_DEPTH, 2, 7)
    assert desk.call("e", depth=3) == Refusal(Reason.AGENT_DEPTH, 2, 3)


def test_calls_and_tokens_of_a_run_run_out() -> None:
    desk = Desk(limits=RunLimits(calls=3, tokens=100))
    desk.done(tokens=60)
    desk.done(tokens=60)
    assert desk.call() == Refusal(Reason.AGENT_BUDGET, 100, 121)
    other = Desk(limits=RunLimits(calls=3))
    for _ in range(3):
        other.done()
    assert other.call() == Refusal(Reason.AGENT_BUDGET, 3, 4)
    other.done(run="another")


def test_a_call_that_was_turned_away_is_not_counted() -> None:
    desk = Desk(limits=RunLimits(calls=2, repeats=1))
    for _ in range(5):
        ident = desk.arrive(print_="same")
        assert desk.agents.ask(ident) is None
        assert desk.agents.ask(ident) is None, "asked twice, counted once"
        desk.agents.released(ident, 0.0)
        desk.agents.released(ident, 0.0)
    desk.done(print_="same")
    assert desk.call(print_="same") == Refusal(Reason.AGENT_LOOP, 1, 2)
    desk.done(print_="other")
    assert desk.call() == Refusal(Reason.AGENT_BUDGET, 2, 3)


def test_the_same_call_again_and_again_is_a_loop() -> None:
    desk = Desk(limits=RunLimits(repeats=5, alternations=None))
    for _ in range(5):
        desk.done(print_="same")
    assert desk.call(print_="same") == Refusal(Reason.AGENT_LOOP, 5, 6)
    desk.done(print_="other")
    desk.done(print_="same", run="another")


def test_two_calls_in_turns_are_a_loop() -> None:
    desk = Desk(limits=RunLimits(repeats=None, alternations=3))
    for _ in range(3):
        desk.done(print_="ping")
        desk.done(print_="pong")
    assert desk.call(print_="ping") == Refusal(Reason.AGENT_LOOP, 3, 4)
    desk.done(print_="new")
    desk.done(print_="ping")


def test_parents_that_lead_back_are_a_cycle() -> None:
    desk = Desk(limits=FREE)
    desk.done("a", "root")
    desk.done("b", "a")
    assert desk.call("a", "b") == Refusal(Reason.AGENT_CYCLE)
    assert desk.call("c", "c") == Refusal(Reason.AGENT_CYCLE)
    # What was refused has not changed the tree.
    desk.done("b", "a")
    desk.done("a", "root")


def test_a_successor_waits_passes_or_is_refused() -> None:
    desk = Desk()
    first = desk.call("first")
    second = desk.arrive("second", after=("first",))
    assert desk.waits
    third = desk.arrive("third", after=("second",))
    assert desk.waits
    assert desk.agents.ready(1.0) == []
    assert desk.agents.waiting == 2
    desk.end(first)
    assert desk.agents.next_deadline() == -math.inf
    assert desk.agents.ready(1.0) == [second]
    assert desk.go(second) == second
    desk.end(second, completed=False)
    assert desk.agents.ready(1.0) == [third]
    assert desk.go(third) == Refusal(Reason.DEPENDENCY_UNMET)
    # Its own successors are refused at once, and a new try of the first mends it.
    assert desk.call("fourth", after=("third",)) == Refusal(Reason.DEPENDENCY_UNMET)
    desk.done("second", after=("first",))
    desk.done("third", after=("second",))
    assert desk.agents.next_deadline() == math.inf


def test_a_predecessor_that_was_shed_refuses_its_successors() -> None:
    desk = Desk()
    shed = desk.arrive("first")
    desk.arrive("second", after=("first",))
    assert desk.waits
    assert desk.agents.ask(shed) is None
    desk.agents.released(shed, 0.0)
    [second] = desk.agents.ready(0.0)
    assert desk.go(second) == Refusal(Reason.DEPENDENCY_UNMET)


def test_nobody_waits_for_ever() -> None:
    desk = Desk(dependency_wait=5.0)
    desk.call("first")
    second = desk.arrive("second", after=("first",))
    assert desk.agents.next_deadline() == 5.0
    assert desk.agents.ready(4.9) == []
    assert desk.agents.ready(5.0) == [second]
    assert desk.go(second) == Refusal(Reason.DEPENDENCY_UNMET)
    assert desk.agents.ready(100.0) == []


def test_who_leaves_while_waiting_is_forgotten() -> None:
    desk = Desk()
    first = desk.call("first")
    second = desk.arrive("second", after=("first",))
    desk.agents.released(second, 1.0)
    desk.end(first)
    assert desk.agents.ready(100.0) == []
    assert desk.agents.waiting == 0


@pytest.mark.parametrize(
    ("unknown", "waits", "answer"),
    [
        (Unknown.PASS, False, None),
        (Unknown.WAIT, True, Reason.DEPENDENCY_UNMET),
        (Unknown.REFUSE, False, Reason.DEPENDENCY_UNMET),
    ],
)
def test_what_nobody_has_heard_of(unknown: Unknown, waits: bool, answer: Reason | None) -> None:
    desk = Desk(unknown=unknown)
    ident = desk.arrive("second", after=("first",))
    assert desk.waits is waits
    assert reason(desk.go(ident)) == answer


def test_a_predecessor_may_come_later() -> None:
    desk = Desk(unknown=Unknown.WAIT)
    second = desk.arrive("second", after=("first", "zeroth"))
    desk.done("first")
    assert desk.agents.ready(0.0) == []
    desk.done("zeroth")
    assert desk.agents.ready(0.0) == [second]
    assert desk.go(second) == second


def test_tasks_that_wait_for_one_another_are_a_cycle() -> None:
    desk = Desk(unknown=Unknown.WAIT)
    first = desk.arrive("first", after=("second",))
    assert desk.waits
    assert desk.call("second", after=("first",)) == Refusal(Reason.AGENT_CYCLE)
    assert desk.agents.ready(0.0) == [first]
    assert desk.go(first) == Refusal(Reason.DEPENDENCY_UNMET)
    assert desk.call("self", after=("self",)) == Refusal(Reason.AGENT_CYCLE)


def test_another_tenant_cannot_join_or_use_up_a_run() -> None:
    desk = Desk(limits=RunLimits(calls=1))
    desk.done("root")
    stranger = Owner("stranger")
    desk.done("root", owner=stranger)
    assert reason(desk.call("next")) is Reason.AGENT_BUDGET
    # What it depends on is not there for a stranger, and what a stranger does is not there for it.
    more = Desk(unknown=Unknown.REFUSE)
    more.done("mine")
    assert reason(more.call("t", after=("mine",), owner=stranger)) is Reason.DEPENDENCY_UNMET
    liar = Owner("acme", trusted=False)
    assert reason(more.call("t", after=("mine",), owner=liar)) is Reason.DEPENDENCY_UNMET
    more.done("t", after=("mine",))


def test_calls_that_name_no_run_are_limited_for_the_tenant() -> None:
    desk = Desk(limits=RunLimits(unnamed=2))
    first, second = desk.call(run=""), desk.call(run="")
    assert desk.call(run="") == Refusal(Reason.AGENT_BUDGET, 2, 3)
    desk.done(run="", owner=Owner("other"))
    ident = desk.arrive(run="")
    assert desk.agents.ask(ident, strict=True) is None
    desk.agents.released(ident, 0.0)
    desk.end(first)
    desk.end(second)
    desk.done(run="")
    assert not desk.agents._unnamed
    assert len(desk.agents.runs) == 0


def test_tenants_may_have_limits_of_their_own() -> None:
    desk = Desk(limits=RunLimits(calls=1), tenants={"big": RunLimits(calls=2)})
    big = Owner("big")
    desk.done(owner=big)
    desk.done(owner=big)
    assert reason(desk.call(owner=big)) is Reason.AGENT_BUDGET


def test_sub_calls_have_the_class_of_the_root_and_the_place_of_the_run() -> None:
    desk = Desk()
    assert desk.agents.root_class(Member(ACME, "r")) is None
    assert desk.agents.root_class(Member(ACME)) is None
    desk.now = 7.0
    root = desk.arrive("root", service_class=P2)
    assert desk.agents.began(Member(ACME, "r")) is None
    desk.go(root)
    desk.now = 9.0
    desk.done("a", "root", service_class=P1)
    assert desk.agents.root_class(Member(ACME, "r", "b", "root")) is P2
    assert desk.agents.began(Member(ACME, "r")) == 7.0
    assert desk.agents.began(Member(ACME)) is None


def test_what_is_counted() -> None:
    desk = Desk()
    desk.done("root")
    desk.done("a", "root")
    desk.done("a", "root")
    desk.done(run="")
    assert desk.agents.admitted_calls == {Kind.ROOT: 1, Kind.SUB_AGENT: 2, Kind.UNNAMED: 1}
    assert desk.agents.runs_begun == 1
    assert repr(desk.agents) == "<Agents: 1 runs, 0 calls>"


def test_ends_and_questions_of_nobody_do_no_harm() -> None:
    desk = Desk()
    desk.agents.admitted("?", 0.0)
    desk.agents.released("?", 0.0)
    desk.agents.ended("?", 0.0, completed=True, tokens=3)
    assert desk.agents.ask("?") is None


def test_a_call_that_was_let_in_is_over_when_its_end_is_told() -> None:
    desk = Desk()
    ident = desk.call("first")
    desk.agents.released("x0", 0.0)
    desk.arrive("second", after=("first",))
    assert desk.waits
    desk.end(ident)
    assert len(desk.agents.ready(0.0)) == 1


def test_the_tasks_of_a_run_are_bounded() -> None:
    desk = Desk(limits=FREE)
    running = desk.call("running")
    for index in range(3 * TASKS):
        desk.done(f"t{index}", "root")
    [run] = desk.agents.runs
    assert len(run.tasks) == TASKS
    assert "running" in run.tasks
    desk.end(running)
    # Where all are under way, none is forgotten.
    busy = Desk(limits=FREE)
    for index in range(TASKS + 10):
        busy.call(f"t{index}")
    [run] = busy.agents.runs
    assert len(run.tasks) == TASKS + 10


def test_the_gate_asks_for_the_call_by_its_id() -> None:
    desk = Desk(limits=RunLimits(unnamed=0))
    ident = desk.arrive(run="")
    pool = Pool("qwen", PoolLimits(8, stale_after=1.0, unknown_after=30.0), (P0, P1))
    who = Classification("acme", "", P1, None, None, (), None, None)
    gate = AgentGate(desk.agents)
    assert gate(Candidate(ident, who, 1, 1), pool, 0.0) == Refusal(Reason.AGENT_BUDGET, 0, 1)
    strict = Classification("acme", "", P0, None, None, (), None, None)
    assert gate(Candidate(ident, strict, 1, 1), pool, 0.0) is None


def test_runs_are_kept_within_bounds() -> None:
    desk = Desk(capacity=4_000)
    for index in range(1_000):
        desk.done("root", run=f"r{index}", owner=Owner(f"tenant{index % 10}"))
    assert len(desk.agents.runs) == 1_000
    assert desk.agents.runs.entries == 3_000
    for index in range(500):
        desk.done("root", run=f"s{index}", owner=Owner(f"tenant{index % 10}"))
    assert desk.agents.runs.entries <= 4_000
