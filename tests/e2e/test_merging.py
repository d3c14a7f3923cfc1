"""Identical calls of one run at the same time, through Envoy: one goes to an engine, all get its answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from extproc.sim.emulator.faults import Faults
from extproc.sim.engine_config import EngineConfig, Policy, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

MERGING = """\
agents: {repeats: 3, dependency_wait: 200ms, merge_wait: 20s}
classes:
  P0: {strict: true, max_wait: 500ms}
  P1: {max_wait: 500ms, free_watermark: {close: 0.08, open: 0.12}}
  P2: {free_watermark: {close: 0.15, open: 0.20}}
envoy: {message_timeout: 1s}
"""
"""Envoy would wait for a second; what is merged takes longer."""
ENGINE = EngineConfig(policy=Policy.PRIORITY, cost=StepCost(0.01, 0.0, 0.0))
CHAT: dict[str, Any] = {
    "model": "qwen",
    "messages": [{"role": "user", "content": "what is it?"}],
    "max_tokens": 130,
    "ignore_eos": True,
}
"""Takes longer than a second."""
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
CALLS = 50


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> Any:
    async with opened(MERGING, engines=1, engine=ENGINE) as stand:
        yield stand


async def ask(stand: Any, run: str, body: dict[str, Any] = CHAT, **headers: str) -> httpx.Response:
    reply = await stand.post(body, x_tenant_id="service", x_agent_run_id=run, **headers)
    assert isinstance(reply, httpx.Response)
    return reply


async def together(stand: Any, run: str, body: dict[str, Any]) -> list[httpx.Response]:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(stand, run, body)) for _ in range(CALLS)]
    return [each.result() for each in asked]


async def until_followed(stand: Any, number: int = 1) -> None:
    await stand.until(lambda seen: seen.of("agent_calls_following") == number, f"{number} follow")


def verdicts(replies: list[httpx.Response]) -> dict[str, int]:
    found = [each.headers["x-tidegate-verdict"] for each in replies]
    return {verdict: found.count(verdict) for verdict in sorted(set(found))}


async def test_fifty_identical_calls_cost_one(stand: Any) -> None:
    replies = await together(stand, "json", CHAT)
    assert verdicts(replies) == {"admit": 1, "merge": CALLS - 1}
    assert {each.status_code for each in replies} == {200}
    assert len({each.content for each in replies}) == 1
    assert replies[0].json()["usage"]["completion_tokens"] == 130
    assert len(await stand.received()) == 1
    await stand.settled()
    seen = await stand.metrics()
    assert stand.grown(seen, "agent_merged_calls_total") == CALLS - 1
    usage = replies[0].json()["usage"]
    assert stand.grown(seen, "agent_tokens_saved_total") == (CALLS - 1) * usage["total_tokens"]
    assert stand.grown(seen, "exchanges_ended_total") == 1
    assert stand.grown(seen, "output_tokens_sum") == 130
    [follower] = [each for each in replies if each.headers["x-tidegate-reason"] == "merged"][:1]
    assert follower.headers["content-type"] == "application/json"


async def test_fifty_identical_streams_cost_one(stand: Any) -> None:
    replies = await together(stand, "stream", STREAM)
    assert verdicts(replies) == {"admit": 1, "merge": CALLS - 1}
    assert {each.headers["content-type"] for each in replies} == {
        "text/event-stream; charset=utf-8"
    }
    assert len({each.content for each in replies}) == 1
    *chunks, usage = [
        json.loads(line[6:]) for line in replies[0].text.splitlines() if line.startswith("data: {")
    ]
    assert usage["usage"]["completion_tokens"] == 130
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert replies[0].text.rstrip().endswith("data: [DONE]")
    assert len(await stand.received()) == 1


async def test_a_call_may_join_while_the_stream_is_under_way(stand: Any) -> None:
    headers = {"x-tenant-id": "service", "x-agent-run-id": "late"}
    url = f"{stand.url}/v1/chat/completions"
    async with stand.http.stream("POST", url, json=STREAM, headers=headers) as leader:
        parts = leader.aiter_raw()
        first = await anext(parts)
        follower = asyncio.create_task(ask(stand, "late", STREAM))
        await until_followed(stand)
        whole = first + await stand.rest(parts)
    assert (await follower).content == whole
    assert len(await stand.received()) == 1


async def test_who_wants_an_answer_of_its_own_gets_one(stand: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(stand, "alone", x_agent_merge="off")) for _ in range(3)]
    assert verdicts([each.result() for each in asked]) == {"admit": 3}
    assert len(await stand.received()) == 3


async def test_runs_and_tenants_are_kept_apart(stand: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask(stand, "one"))
        tasks.create_task(ask(stand, "two"))
        tasks.create_task(stand.post(CHAT, x_tenant_id="pay", x_agent_run_id="one"))
        tasks.create_task(
            stand.post({**CHAT, "seed": 7}, x_tenant_id="service", x_agent_run_id="one")
        )
    assert len(await stand.received()) == 4


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["json", "stream"])
async def test_where_the_leader_leaves_a_follower_takes_over(
    stand: Any, body: dict[str, Any]
) -> None:
    run = "left-" + ("stream" if "stream" in body else "json")
    leader = asyncio.create_task(ask(stand, run, body))
    await stand.until(lambda seen: seen.of("in_flight", pool="*") == 1, "the leader under way")
    followers = [asyncio.create_task(ask(stand, run, body)) for _ in range(2)]
    await until_followed(stand, 2)
    leader.cancel()
    replies = [await each for each in followers]
    assert verdicts(replies) == {"admit": 1, "merge": 1}
    assert replies[0].content == replies[1].content
    assert len(await stand.received()) == 2


async def received_one(stand: Any) -> bool:
    return len(await stand.received()) == 1


async def test_where_the_engine_fails_the_leader_a_follower_takes_over(stand: Any) -> None:
    [engine] = stand.engines
    engine.faults = replace(engine.faults, latency=0.5, status=500)
    leader = asyncio.create_task(ask(stand, "failed"))
    await stand.eventually(lambda: received_one(stand), "the leader under way")
    engine.faults = Faults()
    follower = asyncio.create_task(ask(stand, "failed"))
    await until_followed(stand)
    assert (await leader).status_code == 500
    reply = await follower
    assert reply.headers["x-tidegate-verdict"] == "admit"
    assert reply.json()["usage"]["completion_tokens"] == 130


ROOM_FOR_THREE = """\
agents: {}
classes:
  P0: {strict: true, max_wait: 10s}
  P1: {}
  P2: {evictable: true, max_wait: 10s}
pools:
  "*": {scrape: {interval: 50ms, stale_after: 500ms}}
"""


def long(number: int, tokens: int) -> dict[str, Any]:
    """Return a call with a prompt of some 1,100 tokens: three of them fill 256 blocks."""
    content = f"{number}. " + "one line of a long invoice; " * 160
    return {**CHAT, "messages": [{"role": "user", "content": content}], "max_tokens": tokens}


async def test_where_the_leader_is_evicted_a_follower_takes_over(stand_with: Any) -> None:
    stand = await stand_with(ROOM_FOR_THREE, engines=1, engine=EngineConfig(num_gpu_blocks=256))
    [engine] = stand.engines

    def begin(tenant: str, run: str, body: dict[str, Any]) -> asyncio.Task[httpx.Response]:
        headers = {"x-tenant-id": tenant, "x-agent-run-id": run}
        url = f"{stand.url}/v1/chat/completions"
        return asyncio.create_task(stand.http.post(url, json=body, headers=headers, timeout=60))

    async def until_running(number: int) -> None:
        await stand.eventually(lambda: engine.engine.running == number, f"{number} run")

    others = []
    for number in (1, 2):
        others.append(begin("service", f"other-{number}", long(number, 2000)))
        await until_running(number)
    leader = begin("marketing", "evicted", long(3, 250))
    await until_running(3)
    followers = [begin("marketing", "evicted", long(3, 250)) for _ in range(2)]
    await until_followed(stand, 2)
    await stand.until(lambda seen: seen.sum("endpoint_running", pool="*") == 3, "it was read")

    paid = await stand.post(long(4, 4), x_tenant_id="pay")

    assert paid.headers["x-tidegate-verdict"] == "admit"
    evicted = await leader
    assert evicted.headers["x-tidegate-reason"] == "evicted"
    assert evicted.json()["choices"][0]["finish_reason"] == "load_shedding_fallback"
    for each in others:
        each.cancel()
    replies = [await each for each in followers]
    assert verdicts(replies) == {"admit": 1, "merge": 1}
    assert replies[0].content == replies[1].content
    assert replies[0].json()["usage"]["completion_tokens"] == 250
    await stand.settled()
    seen = await stand.metrics()
    marketing = {"class_": "P2", "pool": "*"}
    assert seen.of("exchanges_ended_total", outcome="evicted", **marketing) == 1
    assert seen.of("exchanges_ended_total", outcome="completed", **marketing) == 1
    assert seen.of("output_tokens_sum", **marketing) == 250
