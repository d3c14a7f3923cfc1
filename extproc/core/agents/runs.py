"""What is known of agent runs, and how much of that is kept.

Rules this module keeps:

* A run belongs to its owner: a tenant, and whether its name was believed. The same run id of somebody
  else is another run: nobody joins, reads or uses up a stranger's.
* Memory is bounded by `CAPACITY` entries (runs, tasks, remembered calls) in all. An owner may hold as
  many as it leaves free; beyond that its own runs go first, the one unused for longest before others.
* What has been idle for long is forgotten, except while calls of it are under way.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from extproc.core.agents.loops import Repeats
from extproc.core.classes import ServiceClass

CAPACITY = 400_000
"""Entries; 100,000 runs of two tasks and one call each fit, in some 120 MB."""
TASKS = 256
"""Tasks of one run that are remembered; of more, those that are over go first."""
LONGEST_ID = 128
"""Characters of the id of a run or a task."""


class Owner(NamedTuple):
    """Whose runs these are; ``trusted``: the tenant's name was believed."""

    tenant: str
    trusted: bool = True


class Member(msgspec.Struct, frozen=True, gc=False):
    """What a call says of its place among the calls of an agent.

    Attributes:
        owner: who calls.
        run: the run's id, or "" where the call names none.
        task: the id of what this call works on, or "".
        parent: the task that it was split off from, or "".
        depends_on: tasks whose results it needs.
        depth: how far it is from the run's root, as the caller says; 0 for the root.
    """

    owner: Owner
    run: str = ""
    task: str = ""
    parent: str = ""
    depends_on: tuple[str, ...] = ()
    depth: int = 0

    @property
    def key(self) -> str:
        """The name of its task within the run, also where it has no id of its own."""
        return self.task or (f"{self.parent}/" if self.parent else "")


class Task:
    """One task of a run.

    Attributes:
        parent, depth: where it stands in the tree, as its last call that might go on said.
        depends_on: as its last call said.
        live: calls that are not over.
        calls: that might go on, by the limits of the run, and were not turned away later.
        failed: how its last call ended; None: none has.
    """

    __slots__ = ("calls", "depends_on", "depth", "failed", "live", "parent")

    def __init__(self) -> None:
        self.parent = ""
        self.depends_on: tuple[str, ...] = ()
        self.depth = 0
        self.live = 0
        self.calls = 0
        self.failed: bool | None = None

    @property
    def sub_agent(self) -> bool:
        """Whether it was split off from another task; what was only refused is nothing."""
        return self.depth > 0 and self.calls > 0


class Run:
    """One run.

    Attributes:
        owner, id: whose it is, and its name.
        service_class: that of its root, the first call that came.
        began: when its first call was admitted, or None.
        calls: that might go on, by the limits of the run, and were not turned away later.
        tokens: of prompts and outputs, as engines reported them.
        live: calls that are not over.
        last: when it was last heard of.
        tasks: by key.
        repeats: which calls were made, or None where none has been.
    """

    __slots__ = (
        *("began", "calls", "id", "last", "live", "owner"),
        *("repeats", "service_class", "tasks", "tokens"),
    )

    def __init__(self, owner: Owner, ident: str, service_class: ServiceClass) -> None:
        self.owner = owner
        self.id = ident
        self.service_class = service_class
        self.began: float | None = None
        self.calls = self.tokens = self.live = 0
        self.last = -math.inf
        self.tasks: dict[str, Task] = {}
        self.repeats: Repeats | None = None

    def __repr__(self) -> str:
        return f"<Run {self.calls} calls, {self.sub_agents} sub-agents, {self.live} live>"

    @property
    def sub_agents(self) -> int:
        """How many of its tasks were split off from another."""
        return sum(task.sub_agent for task in self.tasks.values())

    @property
    def entries(self) -> int:
        """What it takes of `CAPACITY`."""
        return 1 + len(self.tasks) + (0 if self.repeats is None else len(self.repeats))


class _Holding:
    """The runs of one owner, the one unused for longest first, and the entries that they take."""

    __slots__ = ("entries", "runs")

    def __init__(self) -> None:
        self.runs: OrderedDict[str, Run] = OrderedDict()
        self.entries = 0


class Runs:
    """The runs of all owners; ``idle_after``: seconds after which one is forgotten."""

    def __init__(self, *, idle_after: float, capacity: int = CAPACITY) -> None:
        self._idle_after = idle_after
        self._capacity = capacity
        self._runs: OrderedDict[tuple[Owner, str], Run] = OrderedDict()
        self._holdings: dict[Owner, _Holding] = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        yield from self._runs.values()

    @property
    def entries(self) -> int:
        """How much is kept, of `CAPACITY`."""
        return self._entries

    def get(self, owner: Owner, ident: str) -> Run | None:
        """Return a run that is known."""
        return self._runs.get((owner, ident))

    def of(self, owner: Owner, ident: str, service_class: ServiceClass, now: float) -> Run:
        """Return the run of a call that has come; ``service_class``: that of a root."""
        self._forget_idle(now)
        run = self._runs.get((owner, ident))
        if run is None:
            run = self._runs[owner, ident] = Run(owner, ident, service_class)
            holding = self._holdings.setdefault(owner, _Holding())
            holding.runs[ident] = run
            holding.entries += run.entries
            self._entries += run.entries
        self._touch(run, now)
        return run

    def changed(self, run: Run, entries: int, now: float) -> None:
        """Count what has become of a run that took so many ``entries`` before."""
        holding = self._touch(run, now)
        more = run.entries - entries
        if holding is not None and more:
            holding.entries += more
            self._entries += more
            self._make_room(holding)

    def _touch(self, run: Run, now: float) -> _Holding | None:
        """Note that a run is in use; return its owner's holding while it is remembered."""
        run.last = now
        key = (run.owner, run.id)
        if self._runs.get(key) is not run:
            return None
        self._runs.move_to_end(key)
        holding = self._holdings[run.owner]
        holding.runs.move_to_end(run.id)
        return holding

    def _make_room(self, holding: _Holding) -> None:
        runs = holding.runs
        while len(runs) > 1 and holding.entries > self._capacity - self._entries:
            self._forget(next(iter(runs.values())))
        while self._entries > self._capacity and len(self._runs) > 1:
            self._forget(next(iter(self._runs.values())))

    def _forget_idle(self, now: float) -> None:
        """Forget up to two runs: that is faster than they come."""
        for _ in range(2):
            run = next(iter(self._runs.values()), None)
            if run is None or now - run.last < self._idle_after:
                return
            if run.live:
                self._touch(run, now)
            else:
                self._forget(run)

    def _forget(self, run: Run) -> None:
        del self._runs[run.owner, run.id]
        self._entries -= run.entries
        holding = self._holdings[run.owner]
        holding.entries -= run.entries
        del holding.runs[run.id]
        if not holding.runs:
            del self._holdings[run.owner]


def leads_to(start: str, goal: str, edges: Callable[[str], Iterable[str]]) -> bool:
    """Say whether the edges lead from one task to another, or both are the same."""
    seen, todo = {start}, [start]
    while todo:
        if (here := todo.pop()) == goal:
            return True
        fresh = [each for each in edges(here) if each not in seen]
        seen.update(fresh)
        todo += fresh
    return False
