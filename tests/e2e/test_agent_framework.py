"""The OpenAI Agents SDK as its users have it: runs, sub-agents and dependencies named in headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
)

from extproc.sim.engine_config import EngineConfig, Policy, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

AGENTS = "agents: {dependency_wait: 4s}"
ENGINE = EngineConfig(policy=Policy.PRIORITY, cost=StepCost(0.001, 0.0, 0.0))
UNTRACED = RunConfig(tracing_disabled=True)

MakeAgent = Callable[..., Agent[Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> Any:
    async with opened(AGENTS, engines=1, engine=ENGINE) as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="module")
async def agent_of(stand: Any) -> AsyncIterator[MakeAgent]:
    """Make agents of a run; each names its task, what split it off and what it waits for."""
    clients: list[openai.AsyncOpenAI] = []

    def make(
        run: str, task: str, *, model: Any = OpenAIChatCompletionsModel, **said: str
    ) -> Agent[Any]:
        client = openai.AsyncOpenAI(
            base_url=f"{stand.url}/v1",
            api_key="sk-canary-0c9b4e",
            default_headers={"x-tenant-id": "service", "x-agent-run-id": run},
        )
        clients.append(client)
        headers = {f"x-agent-{name.replace('_', '-')}": value for name, value in said.items()}
        return Agent(
            name=task,
            instructions="Be brief.",
            model=model(model="qwen", openai_client=client),
            model_settings=ModelSettings(
                max_tokens=600, extra_headers={"x-agent-task-id": task, **headers}
            ),
        )

    yield make
    for client in clients:
        await client.close()


async def run(agent: Agent[Any], question: str) -> str:
    result = await Runner.run(agent, question, run_config=UNTRACED)
    return str(result.final_output)


async def test_an_orchestrator_learns_that_it_has_sub_agents_enough(
    stand: Any, agent_of: MakeAgent
) -> None:
    assert await run(agent_of("fan", "root"), "plan")
    for number in range(3):
        assert await run(agent_of("fan", f"part-{number}", parent_id="root"), f"part {number}")
    with pytest.raises(openai.RateLimitError) as refused:
        await run(agent_of("fan", "part-3", parent_id="root"), "part 3")
    assert refused.value.code == "agent_fanout"
    assert "Do the work in those that it has." in refused.value.message
    seen = await stand.metrics()
    assert stand.grown(seen, "decisions_total", reason="agent_fanout") == 1, "nothing is sent twice"
    assert stand.grown(seen, "agent_calls_total", kind="sub_agent") == 3


@pytest.mark.parametrize("model", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_sub_agents_that_ask_the_same_share_one_call(
    stand: Any, agent_of: MakeAgent, model: Any
) -> None:
    [engine] = stand.engines
    engine.faults = replace(engine.faults, latency=0.5)
    agents = [
        agent_of(f"same-{model.__name__}", f"t{n}", model=model, parent_id="root") for n in range(3)
    ]
    answers = await asyncio.gather(*(run(agent, "the same") for agent in agents))
    assert len(set(answers)) == 1
    assert answers[0]
    assert len(await stand.received()) == 1


async def test_streams_of_sub_agents_are_shared_too(stand: Any, agent_of: MakeAgent) -> None:
    async def stream(agent: Agent[Any]) -> str:
        result = Runner.run_streamed(agent, "the same", run_config=UNTRACED)
        events = [event.type async for event in result.stream_events()]
        assert "raw_response_event" in events
        return str(result.final_output)

    [engine] = stand.engines
    engine.faults = replace(engine.faults, latency=0.5)
    agents = [agent_of("streams", f"t{n}", parent_id="root") for n in range(3)]
    answers = await asyncio.gather(*(stream(agent) for agent in agents))
    assert len(set(answers)) == 1
    assert len(await stand.received()) == 1


async def test_a_writer_waits_for_its_researcher(stand: Any, agent_of: MakeAgent) -> None:
    researcher = agent_of("chain", "research")
    writer = agent_of("chain", "write", depends_on="research")
    [engine] = stand.engines
    engine.faults = replace(engine.faults, latency=0.5)
    research = asyncio.create_task(run(researcher, "what is it?"))
    await stand.until(lambda seen: seen.of("in_flight", pool="*") == 1, "the research under way")
    written = await run(writer, "write it down")
    assert research.done()
    assert written
    first, second = await stand.received()
    assert b"what is it?" in first.body
    assert b"write it down" in second.body


async def test_an_agent_in_a_loop_is_stopped(stand: Any, agent_of: MakeAgent) -> None:
    agent = agent_of("loop", "root")
    for _ in range(5):
        await run(agent, "find it once more")
    with pytest.raises(openai.RateLimitError) as refused:
        await run(agent, "find it once more")
    assert refused.value.code == "agent_loop"
