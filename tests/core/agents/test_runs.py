"""What is kept of runs, whose they are, and when they are forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.agents.loops import Repeats
from extproc.core.agents.runs import Member, Owner, Run, Runs, Task, leads_to
from extproc.core.classes import ServiceClass

P1 = ServiceClass("P1", 1)
ACME, OTHER = Owner("acme"), Owner("other")


def grow(runs: Runs, owner: Owner, ident: str, tasks: int, now: float = 0.0) -> Run:
    run = runs.of(owner, ident, P1, now)
    entries = run.entries
    for index in range(len(run.tasks), tasks):
        run.tasks[str(index)] = Task()
    runs.changed(run, entries, now)
    return run


def test_a_run_belongs_to_its_owner() -> None:
    runs = Runs(idle_after=60.0)
    mine = runs.of(ACME, "r", P1, 0.0)
    assert runs.of(ACME, "r", P1, 1.0) is mine
    assert runs.of(OTHER, "r", P1, 1.0) is not mine
    assert runs.of(Owner("acme", trusted=False), "r", P1, 1.0) is not mine
    assert runs.get(OTHER, "else") is None
    assert repr(mine) == "<Run 0 calls, 0 sub-agents, 0 live>"


def test_a_task_without_an_id_is_named_after_its_parent() -> None:
    assert Member(ACME, "r", "t", "p").key == "t"
    assert Member(ACME, "r", "", "p").key == "p/"
    assert Member(ACME, "r").key == ""


def test_idle_runs_are_forgotten_but_not_while_calls_are_under_way() -> None:
    runs = Runs(idle_after=60.0)
    runs.of(ACME, "idle", P1, 0.0)
    runs.of(ACME, "busy", P1, 0.0).live = 1
    runs.of(ACME, "new", P1, 60.0)
    assert [run.id for run in runs] == ["busy", "new"]
    assert runs.entries == 2


def test_memory_is_bounded_with_100_000_runs() -> None:
    runs = Runs(idle_after=1e9, capacity=10_000)
    for index in range(100_000):
        grow(runs, Owner(f"tenant{index % 1000}"), f"run{index}", 2)
    assert runs.entries <= 10_000
    assert len(runs) == sum(1 for _ in runs) <= 10_000


def test_who_makes_many_runs_pushes_out_its_own() -> None:
    runs = Runs(idle_after=1e9, capacity=300)
    grow(runs, OTHER, "precious", 2)
    for index in range(1000):
        grow(runs, ACME, f"flood{index}", 2)
    assert runs.get(OTHER, "precious") is not None
    assert runs.get(ACME, "flood999") is not None
    assert runs.get(ACME, "flood0") is None
    assert runs.entries <= 300


def test_many_owners_share_what_there_is() -> None:
    runs = Runs(idle_after=1e9, capacity=30)
    for index in range(100):
        grow(runs, Owner(f"tenant{index}"), "r", 2)
    assert runs.entries <= 30
    assert runs.get(Owner("tenant99"), "r") is not None
    assert runs.get(Owner("tenant0"), "r") is None
    assert len(runs._holdings) == len(runs)


def test_what_happens_to_a_run_that_was_forgotten_counts_no_more() -> None:
    runs = Runs(idle_after=10.0)
    old = runs.of(ACME, "r", P1, 0.0)
    runs.of(ACME, "s", P1, 20.0)
    entries = old.entries
    old.tasks["t"] = Task()
    runs.changed(old, entries, 21.0)
    assert runs.entries == 1


def test_a_run_takes_an_entry_for_itself_each_task_and_each_call() -> None:
    run = Run(ACME, "r", P1)
    run.tasks["t"] = Task()
    run.repeats = Repeats()
    run.repeats.add(b"1")
    run.repeats.add(b"2")
    assert run.entries == 4


@given(
    st.dictionaries(st.integers(0, 6), st.lists(st.integers(0, 6), max_size=3)),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_paths_are_found_whatever_circles_there_are(
    edges: dict[int, list[int]], start: int, goal: int
) -> None:
    reach = {start}
    for _ in range(8):
        reach |= {there for here in reach for there in edges.get(here, ())}
    found = leads_to(str(start), str(goal), lambda here: map(str, edges.get(int(here), ())))
    assert found == (goal in reach)
