"""Agent runs through Envoy: what they may do, what they wait for, and whose they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from extproc.sim.engine_config import EngineConfig, Policy, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

AGENTS = "agents: {repeats: 2, dependency_wait: 4s}"
ENGINE = EngineConfig(policy=Policy.PRIORITY, cost=StepCost(0.005, 0.0, 0.0))
CHAT: dict[str, Any] = {"model": "qwen", "max_tokens": 4, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> Any:
    async with opened(AGENTS, engines=1, engine=ENGINE) as stand:
        yield stand


async def ask(stand: Any, text: str, tenant: str = "service", **more: Any) -> Any:
    said = {
        f"x-agent-{name.replace('_', '-')}": more.pop(name) for name in list(more) if name in AGENT
    }
    messages = [{"role": "user", "content": text}]
    body = {**CHAT, "messages": messages, **more}
    return await stand.post(body, x_tenant_id=tenant, **said)


AGENT = ("run_id", "task_id", "parent_id", "depends_on", "depth")


def refused(reply: Any) -> str | None:
    if reply.status_code == 200:
        assert reply.headers["x-tidegate-verdict"] == "admit"
        return None
    assert reply.status_code == 429
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json()["error"]["code"] == reply.headers["x-tidegate-reason"]
    return str(reply.headers["x-tidegate-reason"])


async def test_a_run_may_have_three_sub_agents(stand: Any) -> None:
    child = {"run_id": "fan", "parent_id": "root"}
    replies = [await ask(stand, f"do {n}", task_id=f"t{n}", **child) for n in range(4)]
    assert [refused(each) for each in replies] == [None, None, None, "agent_fanout"]
    other = await ask(stand, "do 4", "pay", task_id="t4", **child)
    assert refused(other) is None, "another tenant's run of that name is another run"
    seen = await stand.metrics()
    assert stand.grown(seen, "agent_calls_total", kind="sub_agent") == 4
    assert stand.grown(seen, "agent_runs_total") == 2


async def test_metadata_names_the_run_as_well(stand: Any) -> None:
    metadata = {"agent_run_id": "loop"}
    replies = [await ask(stand, "find it once more", metadata=metadata) for _ in range(3)]
    assert [refused(each) for each in replies] == [None, None, "agent_loop"]


async def test_a_trace_is_a_run(stand: Any) -> None:
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    messages = [{"role": "user", "content": "traced"}]
    body = {**CHAT, "messages": messages}
    replies = [await stand.post(body, x_tenant_id="service", **headers) for _ in range(3)]
    assert [refused(each) for each in replies] == [None, None, "agent_loop"]


async def test_a_successor_waits_for_its_predecessor(stand: Any) -> None:
    run = {"run_id": "chain"}
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(ask(stand, "one", task_id="1", max_tokens=200, **run))
        await stand.until(lambda seen: seen.of("in_flight", pool="*") == 1, "the first under way")
        second = tasks.create_task(ask(stand, "two", task_id="2", depends_on="1", **run))
        await stand.until(lambda seen: seen.of("agent_calls_waiting") == 1, "the second waiting")
    assert refused(first.result()) is refused(second.result()) is None
    got = [each.body for each in await stand.received()]
    assert b"one" in got[0]
    assert b"two" in got[1]


async def test_a_successor_of_what_failed_is_refused_at_once(stand: Any) -> None:
    run = {"run_id": "failed"}
    await stand.show_usage(0.99)
    shed = await ask(stand, "one", "marketing", task_id="1", **run)
    assert shed.headers["x-tidegate-verdict"] == "shed"
    await stand.show_usage(0.0)
    second = await ask(stand, "two", "marketing", task_id="2", depends_on="1", **run)
    assert refused(second) == "dependency_unmet"
    assert await stand.received() == []
