"""Whatever agents do in whatever order: nothing leaks, nobody waits for ever, limits hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.agents.dependencies import Unknown
from extproc.core.agents.limits import RunLimits
from extproc.core.agents.rules import Agents, Policy
from extproc.core.agents.runs import Member, Owner
from extproc.core.classes import ServiceClass

P1 = ServiceClass("P1", 1)
LIMITS = RunLimits(sub_agents=2, depth=3, calls=6, tokens=50, repeats=2, alternations=2, unnamed=2)
IDS = st.sampled_from(("", "a", "b", "c", "d"))


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agents = Agents(
            Policy(LIMITS, idle_after=30.0, unknown=Unknown.WAIT, dependency_wait=5.0)
        )
        self.now = 0.0
        self.ids = 0
        self.parked: dict[str, float] = {}
        self.admitted: set[str] = set()

    def judge(self, ident: str) -> None:
        if self.agents.ask(ident) is None:
            self.agents.admitted(ident, self.now)
            self.admitted.add(ident)
        else:
            self.agents.released(ident, self.now)

    @rule(
        owner=st.sampled_from((Owner("x"), Owner("y"))),
        run=st.sampled_from(("", "r", "s")),
        task=IDS,
        parent=IDS,
        after=st.lists(IDS.filter(bool), max_size=2),
        depth=st.integers(0, 5),
        call=st.sampled_from((b"1", b"2")),
    )
    def arrive(
        self,
        owner: Owner,
        run: str,
        task: str,
        parent: str,
        after: list[str],
        depth: int,
        call: bytes,
    ) -> None:
        self.ids += 1
        ident = str(self.ids)
        member = Member(owner, run, task, parent, tuple(after), depth)
        if self.agents.arrive(ident, member, call, P1, self.now):
            self.parked[ident] = self.now
        else:
            self.judge(ident)

    @rule(seconds=st.floats(0.0, 10.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for ident in self.agents.ready(self.now):
            del self.parked[ident]
            self.judge(ident)

    @precondition(lambda self: self.admitted)
    @rule(data=st.data(), completed=st.booleans(), tokens=st.integers(0, 30))
    def end(self, data: st.DataObject, completed: bool, tokens: int) -> None:
        ident = data.draw(st.sampled_from(sorted(self.admitted)))
        self.admitted.remove(ident)
        self.agents.ended(ident, self.now, completed=completed, tokens=tokens)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.parked)))
        del self.parked[ident]
        self.agents.released(ident, self.now)

    @invariant()
    def limits_hold(self) -> None:
        for run in self.agents.runs:
            assert run.calls <= 6
            assert run.sub_agents <= 2
            assert all(task.depth <= 3 for task in run.tasks.values())
            assert run.calls == sum(task.calls for task in run.tasks.values())
            assert run.live == sum(task.live for task in run.tasks.values())

    @invariant()
    def nothing_is_forgotten_or_invented(self) -> None:
        assert set(self.agents._live) == set(self.parked) | self.admitted
        assert self.agents.runs.entries == sum(run.entries for run in self.agents.runs)

    def teardown(self) -> None:
        for ident in self.admitted:
            self.agents.ended(ident, self.now, completed=False, tokens=0)
        self.admitted.clear()
        for _ in range(2 + len(self.parked)):
            self.wait(6.0)
            for ident in self.admitted:
                self.agents.ended(ident, self.now, completed=True, tokens=0)
            self.admitted.clear()
        assert not self.parked
        assert not self.agents._live
        assert not self.agents._pending
        assert not self.agents._unnamed


Life.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
