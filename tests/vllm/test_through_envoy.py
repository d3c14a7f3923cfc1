"""The whole before real engines: Envoy and Tidegate with two vLLM servers behind them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from extproc.stand.plan import Plan, make_plan
from extproc.stand.up import running
from tests.vllm.servers import MODEL, Server

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """\
identity: {sources: [{header: {name: x-tenant-id, trusted: true}}]}
tenants: {pay: {class: P0}, service: {class: P1}, marketing: {class: P2}}
fallback: {language: en}
pools: {"*": {scheduling_policy: priority, scrape: {interval: 100ms, stale_after: 2s}}}
"""
HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT = {"model": MODEL, "messages": HELLO, "ignore_eos": True, "max_tokens": 4}
EXACT: Any = {"ignore_eos": True}


@dataclass
class Stand:
    plan: Plan
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://{self.plan.envoy}"

    def openai(self, tenant: str) -> openai.AsyncOpenAI:
        headers = {"x-tenant-id": tenant}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="x", default_headers=headers)

    async def post(self, body: dict[str, Any], tenant: str) -> httpx.Response:
        url, headers = f"{self.url}/v1/chat/completions", {"x-tenant-id": tenant}
        return await self.http.post(url, json=body, headers=headers)

    async def stream(self, body: dict[str, Any], tenant: str, first: asyncio.Event) -> None:
        """Read a stream to its end; ``first`` is set when its first byte is there."""
        url, headers = f"{self.url}/v1/chat/completions", {"x-tenant-id": tenant}
        request = {**body, "stream": True}
        async with self.http.stream("POST", url, json=request, headers=headers) as reply:
            async for _ in reply.aiter_raw():
                first.set()

    async def metric(self, name: str, **labels: str) -> float | None:
        wanted = {key.rstrip("_"): value for key, value in labels.items()} | {"pool": "*"}
        for family in text_string_to_metric_families(await self.page()):
            for sample in family.samples:
                if sample.name == f"tidegate_{name}" and sample.labels == wanted:
                    return sample.value
        return None

    async def page(self) -> str:
        return (await self.http.get(self.plan.metrics_url)).text

    async def until(self, name: str, wanted: Callable[[float | None], bool], **labels: str) -> None:
        try:
            async with asyncio.timeout(60):
                while not wanted(await self.metric(name, **labels)):  # noqa: ASYNC110 (a remote state)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            lines = [each for each in (await self.page()).splitlines() if "_bucket" not in each]
            raise AssertionError("\n".join([f"never: {name} {labels}", *lines])) from None

    async def idle(self) -> None:
        await self.until("in_flight", lambda value: value == 0)
        for endpoint in self.plan.engines:
            await self.until("endpoint_kv_usage", lambda value: value == 0, endpoint=endpoint)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(engines: list[Server]) -> AsyncIterator[Stand]:
    async with AsyncExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-")))
        (short / "config.yaml").write_text(CONFIG, encoding="utf-8")
        addresses = tuple(each.url.removeprefix("http://") for each in engines)
        plan = make_plan(short, port=0, engines=addresses, config=short / "config.yaml")
        await stack.enter_async_context(running(plan))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=120))
        made = Stand(plan, http)
        await made.until("free_ratio_observed", lambda value: value is not None)
        yield made


async def test_the_openai_client_is_served_as_by_the_engine(stand: Stand) -> None:
    async with stand.openai("pay") as client:
        chat = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=5, extra_body=EXACT
        )
        completion = await client.completions.create(
            model=MODEL, prompt="hello", max_tokens=5, extra_body=EXACT
        )
        response = await client.responses.create(
            model=MODEL, input="hello", max_output_tokens=5, extra_body=EXACT
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=EXACT,
        )
        usage = [chunk.usage async for chunk in stream][-1]

    assert chat.usage is not None
    assert chat.usage.completion_tokens == 5
    assert chat.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    assert response.usage is not None
    assert response.usage.output_tokens == 5
    assert usage is not None
    assert usage.completion_tokens == 5


async def test_the_anthropic_client_is_served_as_by_the_engine(stand: Stand) -> None:
    headers = {"x-tenant-id": "pay"}
    async with anthropic.AsyncAnthropic(
        base_url=stand.url, api_key="x", default_headers=headers
    ) as client:
        message = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=4)
        async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=4) as stream:
            streamed = await stream.get_final_message()

    assert message.usage.output_tokens <= 4
    assert message.stop_reason in {"max_tokens", "end_turn"}
    assert streamed.usage.output_tokens <= 4


async def test_p0_gets_512_tokens_whatever_it_asks_for(stand: Stand) -> None:
    for limit in ({"max_tokens": 1500}, {"max_completion_tokens": 1500}, {}):
        body = {"model": MODEL, "messages": HELLO, "ignore_eos": True, **limit}

        reply = await stand.post(body, "pay")

        assert reply.json()["usage"]["completion_tokens"] == 512


async def test_an_error_of_the_engines_passes_untouched(stand: Stand) -> None:
    reply = await stand.post({**CHAT, "model": "unheard-of"}, "pay")

    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "NotFoundError"
    assert reply.headers["x-tidegate-verdict"] == "admit"


async def test_what_ends_is_counted_with_the_tokens_that_the_engine_reports(stand: Stand) -> None:
    ended = {"class_": "P1", "outcome": "completed"}
    counted = await stand.metric("exchanges_ended_total", **ended) or 0
    tokens = await stand.metric("output_tokens_sum", class_="P1") or 0

    await stand.post({**CHAT, "max_tokens": 7}, "service")
    await stand.post(
        {**CHAT, "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}},
        "service",
    )

    await stand.until("exchanges_ended_total", lambda value: value == counted + 2, **ended)
    assert await stand.metric("output_tokens_sum", class_="P1") == tokens + 13


async def test_a_client_that_leaves_frees_the_engine(stand: Stand) -> None:
    gone = {"class_": "P2", "outcome": "client_gone"}
    before = await stand.metric("exchanges_ended_total", **gone) or 0
    first = asyncio.Event()
    body = {**CHAT, "max_tokens": 1500}

    running_stream = asyncio.create_task(stand.stream(body, "marketing", first))
    await asyncio.wait_for(first.wait(), 60)
    assert await stand.metric("in_flight") == 1
    running_stream.cancel()

    await stand.idle()
    await stand.until("exchanges_ended_total", lambda value: value == before + 1, **gone)


async def test_kv_filled_by_p2_has_p2_shed_and_p0_is_answered(stand: Stand) -> None:
    def long(number: int) -> dict[str, Any]:
        # Different from the first word on: equal prompts would share their blocks.
        text = f"{number} " + "the tide comes in " * 115
        return {**CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 500}

    async def load(number: int) -> None:
        while True:  # until cancelled: the pool stays full, however fast the engines are
            await stand.stream(long(number), "marketing", asyncio.Event())
            await asyncio.sleep(0.1)  # a shed call comes back at once

    async with asyncio.TaskGroup() as tasks:
        callers = [tasks.create_task(load(number)) for number in range(14)]
        async with asyncio.timeout(60):
            # One of the callers may just have ended, and made room for this one.
            shed = await stand.post(long(99), "marketing")
            while shed.headers["x-tidegate-verdict"] == "admit":
                shed = await stand.post(long(99), "marketing")
        answered = await stand.post(CHAT, "pay")
        for each in callers:
            each.cancel()

    assert shed.json()["choices"][0]["finish_reason"] == "load_shedding_fallback"
    assert shed.headers["x-tidegate-reason"] in {"kv_watermark", "kv_demand"}
    assert answered.json()["usage"]["completion_tokens"] == 4
    await stand.idle()
    assert (await stand.post(CHAT, "marketing")).headers["x-tidegate-verdict"] == "admit"
