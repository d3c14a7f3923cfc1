"""Agent runs on the metrics page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from extproc.core.agents.rules import Agents, Policy
from extproc.core.agents.runs import Member, Owner
from extproc.core.classes import ServiceClass
from extproc.telemetry.agents import AgentCollector


def test_runs_are_counted_and_never_named() -> None:
    agents, owner = Agents(Policy()), Owner("acme")
    members = [Member(owner, "r"), Member(owner, "r", "a", "root"), Member(owner)]
    for index, member in enumerate(members):
        agents.arrive(str(index), member, b"", ServiceClass("P1", 0), 0.0)
        agents.ask(str(index))
        agents.admitted(str(index), 0.0)
    agents.arrive("3", Member(owner, "r", "b", "", ("a",)), b"", ServiceClass("P1", 0), 0.0)
    registry = CollectorRegistry()
    registry.register(AgentCollector(agents))
    page = generate_latest(registry).decode().splitlines()
    assert [line for line in page if not line.startswith("#")] == [
        'tidegate_agent_calls_total{kind="root"} 1.0',
        'tidegate_agent_calls_total{kind="sub_agent"} 1.0',
        'tidegate_agent_calls_total{kind="unnamed"} 1.0',
        "tidegate_agent_runs_total 1.0",
        "tidegate_agent_merged_calls_total 0.0",
        "tidegate_agent_tokens_saved_total 0.0",
        "tidegate_agent_runs_known 1.0",
        "tidegate_agent_entries 5.0",
        "tidegate_agent_calls_waiting 1.0",
        "tidegate_agent_calls_following 0.0",
    ]
