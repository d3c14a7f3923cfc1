"""The limits of agent runs as the core knows them."""

from __future__ import annotations

from extproc.config.agents import AgentLimits
from extproc.config.model import Config
from extproc.core.agents.limits import RunLimits
from extproc.core.agents.rules import Policy


def agent_policy(config: Config) -> Policy | None:
    """Return what holds for runs, or None where the configuration says nothing of them."""
    agents = config.agents
    if agents is None:
        return None
    limits = {name: getattr(agents, name) for name in AgentLimits.model_fields}
    return Policy(
        limits=RunLimits(**limits),
        tenants={
            name: RunLimits(**limits | tenant.agents.model_dump(exclude_unset=True))
            for name, tenant in config.tenants.items()
            if tenant.agents is not None
        },
        idle_after=agents.idle_after,
        unknown=agents.unknown_dependency,
        dependency_wait=agents.dependency_wait,
    )
