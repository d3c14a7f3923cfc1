"""What one run may do at most, and whether a call would go beyond.

Rules this module keeps:

* It only looks: nothing is counted here.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.agents.runs import Run, Task
from extproc.core.controller import Refusal
from extproc.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may do; None: as much as it likes.

    Attributes:
        sub_agents: tasks that are split off from others.
        depth: distance from the root.
        calls: calls in all.
        tokens: of prompts and outputs; a call is refused once they are used up.
        repeats: how often the same call may be made.
        alternations: how often two calls may take turns.
        unnamed: calls that name no run and are under way at the same time, for the whole tenant.
    """

    sub_agents: int | None = 3
    depth: int | None = 4
    calls: int | None = 200
    tokens: int | None = None
    repeats: int | None = 5
    alternations: int | None = 3
    unnamed: int | None = 128


def misplaced(run: Run, task: Task, depth: int, limits: RunLimits) -> Refusal | None:
    """Return why a call may not stand where it does in its run's tree, or None."""
    if not depth:
        return None
    refusal = beyond(Reason.AGENT_DEPTH, limits.depth, depth)
    if refusal is None and not task.sub_agent:
        refusal = beyond(Reason.AGENT_FANOUT, limits.sub_agents, run.sub_agents + 1)
    return refusal


def exceeded(run: Run, print_: bytes, limits: RunLimits) -> Refusal | None:
    """Return why a run may make no call more, or not this one, or None; see `loops` for ``print_``."""
    return (
        beyond(Reason.AGENT_BUDGET, limits.calls, run.calls + 1)
        or beyond(Reason.AGENT_BUDGET, limits.tokens, run.tokens + 1)
        or _looping(run, print_, limits)
    )


def _looping(run: Run, print_: bytes, limits: RunLimits) -> Refusal | None:
    if run.repeats is None:
        return None
    turns = run.repeats.alternations(print_) + 1
    return beyond(Reason.AGENT_LOOP, limits.repeats, run.repeats.made(print_) + 1) or beyond(
        Reason.AGENT_LOOP, limits.alternations, turns
    )


def beyond(reason: Reason, most: int | None, value: int) -> Refusal | None:
    """Return a refusal where a value is over what is allowed."""
    return Refusal(reason, most, value) if most is not None and value > most else None
