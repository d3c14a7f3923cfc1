"""The calls of agents from their arrival to their end: what their run lets them do, and what they wait for.

Rules this module keeps:

* A call is known from its arrival to its end, by the id of its exchange. It ends once: it was turned
  away (`Agents.released`), or it was let in and is over (`Agents.ended`).
* What was turned away uses nothing up; but its task counts as failed until it is tried again.
* A call that names no run is held to limits of its owner, not exempt. Strict classes are exempt from
  those: they are admitted as long as they fit.
* A sub-call has the class of its run's root; the caller sees to it that this is never above what its
  tenant has (`extproc.core.classes.Catalog.classify`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from extproc.core.agents.dependencies import Standing, Unknown, standing
from extproc.core.agents.limits import RunLimits, beyond, exceeded, misplaced
from extproc.core.agents.loops import Repeats
from extproc.core.agents.runs import CAPACITY, TASKS, Member, Owner, Run, Runs, Task, leads_to
from extproc.core.capacity import Pool
from extproc.core.classes import ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Policy:
    """What holds for all runs; times in seconds.

    Attributes:
        limits: of tenants that have none of their own.
        tenants: limits by tenant.
        idle_after: when a run that nobody uses is forgotten.
        unknown: what to do about predecessors that nobody has heard of.
        dependency_wait: how long a call waits for its predecessors.
    """

    limits: RunLimits = field(default_factory=RunLimits)
    tenants: Mapping[str, RunLimits] = field(default_factory=dict)
    idle_after: float = 600.0
    unknown: Unknown = Unknown.PASS
    dependency_wait: float = 4.0


class Kind(StrEnum):
    """What calls are, for those who count them."""

    ROOT = "root"
    SUB_AGENT = "sub_agent"
    UNNAMED = "unnamed"


class _Live(msgspec.Struct, eq=False):
    """A call that is not over.

    ``run`` is None where it names none; ``depth``: its distance from the root; ``refusal``: what spoke against it when it came; ``counted``:
    the run's limits have let it pass; ``following``: it waits for the answer of another;
    ``admitted``: it went to an engine.
    """

    member: Member
    print_: bytes
    run: Run | None
    task: Task
    depth: int = 0
    refusal: Refusal | None = None
    counted: bool = False
    following: bool = False
    admitted: bool = False


_NO_TASK = Task()
"""What calls of no run work on; nothing is noted of it."""


class Agents:
    """The runs and the calls that are under way.

    Attributes:
        admitted_calls: calls that were let in, by kind.
        runs_begun: runs of which a call was let in.
        merged_calls: calls that were answered with what another got.
        tokens_saved: that engines would have read and written for those.
        following: calls that wait for the answer of another.
    """

    def __init__(self, policy: Policy, *, capacity: int = CAPACITY) -> None:
        self.policy = policy
        self.runs = Runs(idle_after=policy.idle_after, capacity=capacity)
        self.admitted_calls: Counter[Kind] = Counter()
        self.runs_begun = 0
        self.merged_calls = 0
        self.tokens_saved = 0
        self.following = 0
        self._live: dict[str, _Live] = {}
        self._unnamed: Counter[Owner] = Counter()
        self._pending: dict[Run, list[str]] = {}
        self._deadlines: deque[tuple[float, str]] = deque()
        self._ready: list[str] = []

    def __repr__(self) -> str:
        return f"<Agents: {len(self.runs)} runs, {len(self._live)} calls>"

    # What a run means for its calls.

    def root_class(self, member: Member) -> ServiceClass | None:
        """Return the class of the run's root, or None for a root."""
        run = self.runs.get(member.owner, member.run) if member.run else None
        return None if run is None else run.service_class

    def began(self, member: Member) -> float | None:
        """Return when the run was first let in: it comes before what came later."""
        run = self.runs.get(member.owner, member.run) if member.run else None
        return None if run is None else run.began

    # The life of a call.

    def arrive(
        self, exchange: str, member: Member, print_: bytes, service_class: ServiceClass, now: float
    ) -> bool:
        """Take a call in; say whether it has to wait for others, until `ready` returns it.

        ``print_`` is what the call asks for, as a fingerprint.
        """
        if not member.run:
            self._unnamed[member.owner] += 1
            self._live[exchange] = _Live(member, print_, None, _NO_TASK)
            return False
        run = self.runs.of(member.owner, member.run, service_class, now)
        entries = run.entries
        task = _task(run, member.key)
        live = self._live[exchange] = _Live(member, print_, run, task)
        task.live += 1
        run.live += 1
        live.depth = _depth(run, member)
        if member.parent and leads_to(member.parent, member.key, lambda key: _parent(run, key)):
            live.refusal = Refusal(Reason.AGENT_CYCLE)
        stands = standing(run, member, self.policy.unknown)
        if stands is Standing.CIRCULAR:
            live.refusal = Refusal(Reason.AGENT_CYCLE)
        else:
            task.depends_on = member.depends_on
        self.runs.changed(run, entries, now)
        if live.refusal is not None or stands is not Standing.PENDING:
            return False
        self._pending.setdefault(run, []).append(exchange)
        self._deadlines.append((now + self.policy.dependency_wait, exchange))
        return True

    def admitted(self, exchange: str, now: float) -> None:
        """Note that a call goes to an engine."""
        live = self._live.get(exchange)
        if live is None:
            return
        live.admitted = True
        kind = Kind.SUB_AGENT if live.depth else Kind.ROOT
        self.admitted_calls[Kind.UNNAMED if live.run is None else kind] += 1
        if live.run is not None and live.run.began is None:
            live.run.began = now
            self.runs_begun += 1

    def follow(self, exchange: str) -> bool:
        """Let a call wait for the answer of another, if its place in the run allows; say whether.

        It makes its task one of the run's, and costs the run nothing else.
        """
        live = self._live[exchange]
        if (
            live.run is None
            or live.refusal
            or misplaced(live.run, live.task, live.depth, self._limits(live))
        ):
            return False
        live.following = True
        self.following += 1
        self._count_task(live)
        return True

    def merged(self, exchange: str, now: float) -> None:
        """Note that a call was answered with what another got."""
        self.merged_calls += 1
        self.following -= 1
        self._over(exchange, now, failed=False)

    def released(self, exchange: str, now: float) -> bool:
        """Note that a call was turned away, or left before it was let in; say whether that is so.

        Harmless where it was let in (`ended` tells of its end), and where it is not known (any more).
        """
        live = self._live.get(exchange)
        if live is None or live.admitted:
            return False
        run = live.run
        self._unfollow(live)
        if run is not None and run.repeats is not None and live.counted:
            entries = run.entries
            run.calls -= 1
            live.task.calls -= 1
            run.repeats.undo(live.print_)
            self.runs.changed(run, entries, now)
        self._over(exchange, now, failed=True)
        return True

    def _unfollow(self, live: _Live) -> None:
        if live.following:
            live.following = False
            self.following -= 1
            live.task.calls -= 1

    def ended(self, exchange: str, now: float, *, completed: bool, tokens: int) -> None:
        """Note that a call that was let in is over; harmless where it is not known (any more)."""
        live = self._live.get(exchange)
        if live is not None and live.run is not None:
            live.run.tokens += tokens
        self._over(exchange, now, failed=not completed)

    def _over(self, exchange: str, now: float, *, failed: bool) -> None:
        live = self._live.pop(exchange, None)
        if live is None:
            return
        run = live.run
        if run is None:
            owner = live.member.owner
            self._unnamed[owner] -= 1
            if not self._unnamed[owner]:
                del self._unnamed[owner]
            return
        live.task.live -= 1
        live.task.failed = failed
        run.live -= 1
        self.runs.changed(run, run.entries, now)
        self._release_pending(run)

    # Waiting for predecessors.

    @property
    def waiting(self) -> int:
        """How many calls wait for their predecessors."""
        return sum(map(len, self._pending.values()))

    def pending(self, exchange: str) -> bool:
        """Say whether a call has to wait for its predecessors."""
        live = self._live.get(exchange)
        return (
            live is not None
            and live.run is not None
            and exchange in self._pending.get(live.run, ())
        )

    def ready(self, now: float) -> list[str]:
        """Return the calls that need not, or must not, wait any longer for their predecessors."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, exchange = self._deadlines.popleft()
            live = self._live.get(exchange)
            if live is not None and live.run is not None and self.pending(exchange):
                self._unlist(live.run, exchange)
                self._ready.append(exchange)
        found, self._ready = self._ready, []
        return [each for each in found if each in self._live]

    def next_deadline(self) -> float:
        """Return when `ready` has to be called at the latest; infinite where nobody waits."""
        if self._ready:
            return -math.inf
        return self._deadlines[0][0] if self._deadlines and self._pending else math.inf

    def _release_pending(self, run: Run) -> None:
        for exchange in tuple(self._pending.get(run, ())):
            live = self._live.get(exchange)
            if live is None:
                self._unlist(run, exchange)
            elif standing(run, live.member, self.policy.unknown) is not Standing.PENDING:
                self._unlist(run, exchange)
                self._ready.append(exchange)

    def _unlist(self, run: Run, exchange: str) -> None:
        listed = self._pending[run]
        listed.remove(exchange)
        if not listed:
            del self._pending[run]

    # The limits.

    def ask(self, exchange: str, *, strict: bool = False) -> Refusal | None:
        """Return why a call may not go on, or None; it then counts unless it is `released`."""
        live = self._live.get(exchange)
        if live is None:
            return None
        run, limits = live.run, self._limits(live)
        if run is None:
            busy = self._unnamed[live.member.owner]
            return None if strict else beyond(Reason.AGENT_BUDGET, limits.unnamed, busy)
        if live.counted:
            return None
        self._unfollow(live)
        refusal = (
            live.refusal
            or misplaced(run, live.task, live.depth, limits)
            or exceeded(run, live.print_, limits)
            or self._unmet(run, live)
        )
        if refusal is None:
            self._count(run, live)
        return refusal

    def _count(self, run: Run, live: _Live) -> None:
        entries = run.entries
        live.counted = True
        run.calls += 1
        self._count_task(live)
        run.repeats = run.repeats or Repeats()
        run.repeats.add(live.print_)
        self.runs.changed(run, entries, run.last)

    def _count_task(self, live: _Live) -> None:
        live.task.calls += 1
        live.task.parent, live.task.depth = live.member.parent, live.depth

    def _limits(self, live: _Live) -> RunLimits:
        return self.policy.tenants.get(live.member.owner.tenant, self.policy.limits)

    def _unmet(self, run: Run, live: _Live) -> Refusal | None:
        met = standing(run, live.member, self.policy.unknown) is Standing.MET
        return None if met else Refusal(Reason.DEPENDENCY_UNMET)


class AgentGate:
    """Refuses what a run may not do; an `extproc.core.controller.Gate`."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `extproc.core.controller.Gate`."""
        return self._agents.ask(call.id, strict=call.classification.service_class.strict)


def _task(run: Run, key: str) -> Task:
    task = run.tasks.get(key)
    if task is None:
        if len(run.tasks) >= TASKS:
            over = next((name for name, each in run.tasks.items() if not each.live), None)
            if over is not None:
                del run.tasks[over]
        task = run.tasks[key] = Task()
    return task


def _depth(run: Run, member: Member) -> int:
    """Return the distance from the root: what the caller says, but at least what we know."""
    if not member.parent:
        return member.depth
    above = run.tasks.get(member.parent)
    return max(member.depth, 1 if above is None else above.depth + 1)


def _parent(run: Run, key: str) -> tuple[str, ...]:
    known = run.tasks.get(key)
    return (known.parent,) if known is not None and known.parent else ()
