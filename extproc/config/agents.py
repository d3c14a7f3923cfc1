"""The section ``agents:``. Without it runs mean nothing; with ``agents: {}`` they are limited."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from extproc.config.base import Section
from extproc.config.values import Count, Seconds
from extproc.core.agents.dependencies import Unknown

Place = Literal["headers", "metadata", "baggage", "traceparent"]


class AgentLimits(Section):
    """What one run of an agent may do; null: as much as it likes.

    ``sub_agents``: tasks that are split off from others. ``depth``: of nested sub-agents. ``calls`` and
    ``tokens``: of the whole run. ``repeats``: how often the same call may be made; ``alternations``: how
    often two may take turns. ``unnamed``: calls of a tenant that name no run and are under way at the
    same time; it does not hold for strict classes.
    """

    sub_agents: Annotated[int, Field(ge=0, le=1 << 20)] | None = 3
    depth: Annotated[int, Field(ge=0, le=1 << 20)] | None = 4
    calls: Count | None = 200
    tokens: Count | None = None
    repeats: Count | None = 5
    alternations: Count | None = 3
    unnamed: Count | None = 128


class AgentsConfig(AgentLimits):
    """The limits of all tenants, and how runs are known; see `extproc.core.agents`.

    ``identity``: where a call says which run it belongs to, the first that does wins. ``idle_after``:
    when a run that nobody uses is forgotten. A call waits for ``dependency_wait`` at most for the tasks
    that it depends on; ``unknown_dependency`` says what becomes of one whose predecessor nobody has
    heard of. An identical call of the same run follows the one under way for up to
    ``merge_wait`` and gets its answer; 0: each gets its own.
    """

    identity: tuple[Place, ...] = ("headers", "metadata", "baggage", "traceparent")
    idle_after: Annotated[Seconds, Field(gt=0)] = 600.0
    dependency_wait: Seconds = 4.0
    unknown_dependency: Unknown = Unknown.PASS
    merge_wait: Annotated[Seconds, Field(le=3000)] = 120.0
