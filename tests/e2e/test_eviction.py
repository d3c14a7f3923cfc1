"""P0 gets room from P2 in flight, and those who give it are told well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio

from extproc.sim.engine_config import EngineConfig

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

THREE_FIT = """
classes:
  P0: {strict: true, max_wait: 10s}
  P1: {}
  P2: {evictable: true}
pools:
  "*": {scrape: {interval: 50ms, stale_after: 500ms}}
"""
BLOCKS = 256
"""Of 16 tokens: three of the long prompts below fit, and no fourth."""
ENDLESS = 2000
"""Tokens: about half a minute."""
NUMBERS = count(1)


def prompt() -> str:
    """Some 1,100 tokens; never twice the same, or the engine would have its blocks already."""
    return f"{next(NUMBERS)}. " + "one line of a long invoice; " * 160


def messages() -> Any:
    return [{"role": "user", "content": prompt()}]


def call_of(tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "qwen", "messages": messages(), "max_tokens": tokens, "ignore_eos": True, **more,
    }  # fmt: skip


CHAT = "/v1/chat/completions"
MESSAGE = (
    "We are very busy right now. Your place in the queue is kept: please resend in 15 seconds."
)
FALLBACK = "load_shedding_fallback"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    small = EngineConfig(num_gpu_blocks=BLOCKS)
    async with opened(THREE_FIT, engines=1, engine=small) as stand:
        yield stand


@asynccontextmanager
async def full(stand: Any, *cuttable: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[Any]:
    """Fill the engine with calls of P1 and these, in this order; give the tasks of these."""
    (engine,) = stand.engines
    kept = [lambda: stand.post(call_of(ENDLESS), x_tenant_id="service")] * (3 - len(cuttable))
    async with asyncio.TaskGroup() as group:
        tasks = []
        for call in (*kept, *cuttable):
            tasks.append(group.create_task(call()))
            await stand.eventually(lambda: engine.engine.running == len(tasks), "it runs")
        later = engine.engine.generation_tokens_total + 30
        await stand.eventually(lambda: engine.engine.generation_tokens_total > later, "some text")
        await stand.until(lambda seen: seen.sum("endpoint_running", pool="*") == 3, "it was read")
        yield tasks[len(kept) :]
        for each in tasks:
            each.cancel()


async def pay(stand: Any) -> None:
    """A payment that finds no room is served all the same."""
    reply = await stand.post(call_of(4), x_tenant_id="pay")
    assert reply.headers["x-tidegate-verdict"] == "admit"
    assert reply.json()["choices"][0]["finish_reason"] == "length"


async def test_a_call_that_has_no_answer_yet_gets_the_plain_fallback(stand: Any) -> None:
    async with full(stand, lambda: stand.post(call_of(ENDLESS), x_tenant_id="marketing")) as (
        call,
    ):
        await pay(stand)
        evicted = await call
    assert evicted.status_code == 200
    assert evicted.headers["x-tidegate-verdict"] == "shed"
    assert evicted.headers["x-tidegate-reason"] == "evicted"
    assert evicted.headers["content-type"] == "application/json"
    body = evicted.json()
    assert body["id"].startswith("chatcmpl-promo-shedded-")
    assert body["choices"][0]["message"]["content"] == MESSAGE
    assert body["choices"][0]["finish_reason"] == FALLBACK
    assert body["tidegate"] == {
        "reason": "evicted",
        "ticket": evicted.headers["x-tidegate-ticket"],
    }
    await stand.settled()
    seen = await stand.metrics()
    assert stand.grown(seen, "exchanges_ended_total", outcome="evicted", class_="P2") == 1
    assert stand.grown(seen, "exchanges_ended_total", outcome="completed", class_="P0") == 1


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_a_stream_ends_with_the_message_on_a_connection_that_lives_on(
    stand: Any, http2: bool
) -> None:
    call = call_of(ENDLESS, stream=True, stream_options={"include_usage": True})
    headers = {"x-tenant-id": "marketing"}
    async with (
        httpx.AsyncClient(http1=not http2, http2=http2, timeout=10) as client,
        full(stand, lambda: client.post(stand.url + CHAT, json=call, headers=headers)) as (cut,),
    ):
        connections = await stand.envoy("http.tidegate.downstream_cx_total")
        await pay(stand)
        reply = await cut
        assert (await client.get(stand.url + "/v1/models")).status_code == 200
        opened = await stand.envoy("http.tidegate.downstream_cx_total") - connections
        assert opened <= 1, "that of the payment"
    assert reply.headers["x-tidegate-verdict"] == "admit", "it was said before"
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    said, end, usage = chunks[-3:]
    assert said["choices"][0]["delta"]["content"] == f"\n\n{MESSAGE}"
    assert end["choices"][0]["finish_reason"] == FALLBACK
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    await stand.settled()
    seen = await stand.metrics()
    assert stand.grown(seen, "exchanges_ended_total", outcome="evicted", class_="P2") == 1


async def test_the_real_clients_read_the_message(stand: Any) -> None:
    headers = {"x-tenant-id": "marketing"}

    async def chat() -> tuple[str, str]:
        async with (
            openai.AsyncOpenAI(
                base_url=f"{stand.url}/v1",
                api_key="sk-canary-0c9b4e",
                default_headers=headers,
                max_retries=0,
            ) as client,
            client.chat.completions.stream(
                model="qwen",
                messages=messages(),
                max_tokens=ENDLESS,
                extra_body={"ignore_eos": True},
            ) as stream,
        ):
            async for _ in stream:
                pass
            choice = (await stream.get_final_completion()).choices[0]
        return choice.message.content or "", choice.finish_reason

    async def response() -> tuple[str, str | None]:
        async with (
            openai.AsyncOpenAI(
                base_url=f"{stand.url}/v1",
                api_key="sk-canary-0c9b4e",
                default_headers=headers,
                max_retries=0,
            ) as client,
            client.responses.stream(
                model="qwen",
                input=prompt(),
                max_output_tokens=ENDLESS,
                extra_body={"ignore_eos": True},
            ) as stream,
        ):
            async for _ in stream:
                pass
            whole = await stream.get_final_response()
        return whole.output_text, whole.status

    async def message() -> tuple[str, str | None]:
        async with (
            anthropic.AsyncAnthropic(
                base_url=stand.url,
                api_key="sk-canary-0c9b4e",
                default_headers=headers,
                max_retries=0,
            ) as client,
            client.messages.stream(
                model="qwen",
                messages=messages(),
                max_tokens=ENDLESS,
                extra_body={"ignore_eos": True},
            ) as stream,
        ):
            async for _ in stream:
                pass
            whole = await stream.get_final_message()
        return whole.content[0].text, whole.stop_reason  # type: ignore[union-attr]

    for call, end in ((chat, FALLBACK), (response, "completed"), (message, FALLBACK)):
        async with full(stand, call) as (cut,):
            await pay(stand)
            text, reason = await cut
        assert text.endswith(f"\n\n{MESSAGE}")
        assert len(text) > len(MESSAGE) + 2, "what the engine had said is still there"
        assert reason == end
        await stand.settled()


async def test_nothing_is_cut_where_nothing_may_be(stand: Any) -> None:
    (engine,) = stand.engines
    async with full(stand), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(stand.post(call_of(4), x_tenant_id="pay"))
        await stand.until(lambda seen: seen.of("queue_depth", pool="*", class_="P0") == 1, "queued")
        later = engine.engine.generation_tokens_total + 100
        await stand.eventually(lambda: engine.engine.generation_tokens_total > later, "a while")
        assert engine.engine.running == 3
        waiting.cancel()
    await stand.settled()
    assert stand.grown(await stand.metrics(), "exchanges_ended_total", outcome="evicted") == 0


async def test_structured_output_is_not_cut_in_the_middle(stand: Any) -> None:
    """Half a JSON object with a message behind it would break its client."""
    (engine,) = stand.engines
    engine.faults = replace(engine.faults, text='{"a": "' + "b" * 8000)
    call = call_of(ENDLESS, stream=True, response_format={"type": "json_object"})
    plain = partial(stand.post, call_of(ENDLESS), x_tenant_id="marketing")
    async with full(stand, plain, partial(stand.post, call, x_tenant_id="marketing")) as calls:
        evicted, spared = calls
        await pay(stand)
        assert (await evicted).headers["x-tidegate-reason"] == "evicted"
        assert not spared.done()
    await stand.settled()
