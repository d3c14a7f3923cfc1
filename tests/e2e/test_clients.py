"""The real OpenAI and Anthropic clients: what is admitted reads as from the engine, what is shed
reads as an answer, and nothing is sent twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import anthropic
import openai
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

FULL = 0.99
FALLBACK = "load_shedding_fallback"
MESSAGE = (
    "We are very busy right now. Your place in the queue is kept: please resend in 15 seconds."
)
HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
AnyClient = TypeVar("AnyClient", openai.AsyncOpenAI, anthropic.AsyncAnthropic)
TOOL: Any = {"type": "function", "function": {"name": "pay", "parameters": SCHEMA}}


def openai_client(url: str, tenant: str) -> openai.AsyncOpenAI:
    """A client as people make it: retries are left as they are."""
    headers = {"x-tenant-id": tenant}
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="sk-canary-0c9b4e", default_headers=headers
    )


def anthropic_client(url: str, tenant: str) -> anthropic.AsyncAnthropic:
    headers = {"x-tenant-id": tenant}
    return anthropic.AsyncAnthropic(
        base_url=url, api_key="sk-canary-0c9b4e", default_headers=headers
    )


@asynccontextmanager
async def making(
    stand: Any, new: Callable[[str, str], AnyClient]
) -> AsyncIterator[Callable[..., AnyClient]]:
    """Make clients until the block ends: with a tenant through Envoy, else straight to an engine."""
    async with AsyncExitStack() as stack:

        def make(tenant: str | None = None) -> AnyClient:
            client = new(stand.engines[0].url if tenant is None else stand.url, tenant or "")
            stack.push_async_callback(client.close)
            return client

        yield make


@pytest_asyncio.fixture(loop_scope="module")
async def oai(stand: Any) -> AsyncIterator[Callable[..., openai.AsyncOpenAI]]:
    async with making(stand, openai_client) as make:
        yield make


@pytest_asyncio.fixture(loop_scope="module")
async def claude(stand: Any) -> AsyncIterator[Callable[..., anthropic.AsyncAnthropic]]:
    async with making(stand, anthropic_client) as make:
        yield make


@asynccontextmanager
async def requests_at_envoy(stand: Any, expected: int) -> AsyncIterator[None]:
    """Prove that exactly so many requests come to Envoy inside the block: no retries."""
    before = await stand.envoy("http.tidegate.downstream_rq_total")
    yield
    assert await stand.envoy("http.tidegate.downstream_rq_total") - before == expected


# One reader for each way of calling. Each returns what must be equal with and without Tidegate.


def said(usage: Any, *names: str) -> tuple[int, ...] | None:
    return usage and tuple(getattr(usage, name) for name in names)


async def chat(client: openai.AsyncOpenAI) -> Any:
    reply = await client.chat.completions.create(model="qwen", messages=HELLO, max_tokens=4)
    choice = reply.choices[0]
    usage = said(reply.usage, "prompt_tokens", "completion_tokens", "total_tokens")
    return reply.model, choice.message.content, choice.finish_reason, usage


async def chat_stream(client: openai.AsyncOpenAI, **more: Any) -> Any:
    stream = await client.chat.completions.create(
        model="qwen", messages=HELLO, max_tokens=4, stream=True, **more
    )
    chunks = [chunk async for chunk in stream]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    usages = [said(c.usage, "prompt_tokens", "completion_tokens") for c in chunks if c.usage]
    (model,) = {chunk.model for chunk in chunks}
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(choice.delta.content or "" for choice in choices)
    return model, text, choices[0].delta.role, choices[-1].finish_reason, usages


async def chat_stream_with_usage(client: openai.AsyncOpenAI) -> Any:
    return await chat_stream(client, stream_options={"include_usage": True})


async def chat_stream_helper(client: openai.AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(model="qwen", messages=HELLO, max_tokens=4) as stream:
        async for _ in stream:
            pass
        reply = await stream.get_final_completion()
    return reply.choices[0].message.content, reply.choices[0].finish_reason


async def completions(client: openai.AsyncOpenAI) -> Any:
    reply = await client.completions.create(model="qwen", prompt="hello", max_tokens=4)
    choice = reply.choices[0]
    return choice.text, choice.finish_reason, said(reply.usage, "prompt_tokens", "total_tokens")


async def completions_stream(client: openai.AsyncOpenAI) -> Any:
    stream = await client.completions.create(
        model="qwen", prompt="hello", max_tokens=4, stream=True
    )
    chunks = [chunk async for chunk in stream]
    return "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason


async def responses(client: openai.AsyncOpenAI) -> Any:
    reply = await client.responses.create(model="qwen", input="hello", max_output_tokens=4)
    usage = said(reply.usage, "input_tokens", "output_tokens", "total_tokens")
    return reply.model, reply.output_text, reply.status, usage


async def responses_stream(client: openai.AsyncOpenAI) -> Any:
    async with client.responses.stream(model="qwen", input="hello", max_output_tokens=4) as stream:
        kinds = [event.type async for event in stream]
        reply = await stream.get_final_response()
    return reply.output_text, reply.status, kinds[0], kinds[-1]


async def messages(client: anthropic.AsyncAnthropic) -> Any:
    reply = await client.messages.create(model="qwen", messages=HELLO, max_tokens=4)
    (block,) = reply.content
    assert block.type == "text"
    usage = said(reply.usage, "input_tokens", "output_tokens")
    return reply.model, block.text, reply.stop_reason, usage


async def messages_stream(client: anthropic.AsyncAnthropic) -> Any:
    async with client.messages.stream(model="qwen", messages=HELLO, max_tokens=4) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        reply = await stream.get_final_message()
    return text, reply.stop_reason, said(reply.usage, "input_tokens", "output_tokens")


OPENAI_SHED: dict[Callable[[openai.AsyncOpenAI], Awaitable[Any]], Any] = {
    chat: ("qwen", MESSAGE, FALLBACK, (0, 0, 0)),
    chat_stream: ("qwen", MESSAGE, "assistant", FALLBACK, []),
    chat_stream_with_usage: ("qwen", MESSAGE, "assistant", FALLBACK, [(0, 0)]),
    chat_stream_helper: (MESSAGE, FALLBACK),
    completions: (MESSAGE, FALLBACK, (0, 0)),
    completions_stream: (MESSAGE, FALLBACK),
    responses: ("qwen", MESSAGE, "completed", (0, 0, 0)),
    responses_stream: (MESSAGE, "completed", "response.created", "response.completed"),
}
ANTHROPIC_SHED: dict[Callable[[anthropic.AsyncAnthropic], Awaitable[Any]], Any] = {
    messages: ("qwen", MESSAGE, FALLBACK, (0, 0)),
    messages_stream: (MESSAGE, FALLBACK, (0, 0)),
}


def named(function: Any) -> str:
    return str(function.__name__)


# The helper takes the end by max_tokens, which an admitted call has here, for an error.
@pytest.mark.parametrize(
    "call", [each for each in OPENAI_SHED if each is not chat_stream_helper], ids=named
)
async def test_openai_reads_an_admitted_answer_as_the_engine_gave_it(
    stand: Any, oai: Any, call: Any
) -> None:
    direct = await call(oai())
    async with requests_at_envoy(stand, 3):
        for tenant in ("pay", "service", "marketing"):
            assert await call(oai(tenant)) == direct


@pytest.mark.parametrize("call", ANTHROPIC_SHED, ids=named)
async def test_anthropic_reads_an_admitted_answer_as_the_engine_gave_it(
    stand: Any, claude: Any, call: Any
) -> None:
    direct = await call(claude())
    async with requests_at_envoy(stand, 3):
        for tenant in ("pay", "service", "marketing"):
            assert await call(claude(tenant)) == direct


async def test_openai_reads_the_fallback_as_an_answer(stand: Any, oai: Any) -> None:
    await stand.show_usage(FULL)
    client = oai("marketing")
    connections = await stand.envoy("http.tidegate.downstream_cx_total")
    async with requests_at_envoy(stand, len(OPENAI_SHED) + 1):
        for call, expected in OPENAI_SHED.items():
            assert await call(client) == expected, named(call)
        # The connection that carried all these is good for the next call as well.
        reply = await client.chat.completions.create(
            model="qwen", messages=HELLO, extra_headers={"x-tenant-id": "pay"}, max_tokens=4
        )
        assert reply.choices[0].finish_reason == "length"
    assert await stand.envoy("http.tidegate.downstream_cx_total") - connections == 1
    assert len(await stand.received()) == 1


async def test_anthropic_reads_the_fallback_as_an_answer(stand: Any, claude: Any) -> None:
    await stand.show_usage(FULL)
    client = claude("marketing")
    connections = await stand.envoy("http.tidegate.downstream_cx_total")
    async with requests_at_envoy(stand, len(ANTHROPIC_SHED) + 1):
        for call, expected in ANTHROPIC_SHED.items():
            assert await call(client) == expected, named(call)
        reply = await client.messages.create(
            model="qwen", messages=HELLO, extra_headers={"x-tenant-id": "pay"}, max_tokens=4
        )
        assert reply.stop_reason == "max_tokens"
    assert await stand.envoy("http.tidegate.downstream_cx_total") - connections == 1
    assert len(await stand.received()) == 1


async def test_the_fallback_can_be_recognised(stand: Any, oai: Any, claude: Any) -> None:
    await stand.show_usage(FULL)
    raw = await oai("marketing").chat.completions.with_raw_response.create(
        model="qwen", messages=HELLO
    )
    assert raw.headers["x-tidegate-verdict"] == "shed"
    assert raw.headers["x-tidegate-reason"] == "kv_watermark"
    assert raw.headers["x-tidegate-class"] == "P2"
    assert raw.headers["retry-after"] == "15"
    reply = raw.parse()
    assert reply.id.startswith("chatcmpl-promo-shedded-")
    ticket = raw.headers["x-tidegate-ticket"]
    assert reply.model_extra == {"tidegate": {"reason": "kv_watermark", "ticket": ticket}}
    message = await claude("marketing").messages.create(model="qwen", messages=HELLO, max_tokens=4)
    assert message.id.startswith("msg_promo_shedded_")


async def openai_json(client: openai.AsyncOpenAI) -> Any:
    return await client.chat.completions.create(
        model="qwen", messages=HELLO, response_format={"type": "json_object"}
    )


async def openai_forced_tool(client: openai.AsyncOpenAI) -> Any:
    return await client.chat.completions.create(
        model="qwen", messages=HELLO, tools=[TOOL], tool_choice="required", stream=True
    )


async def openai_responses_json(client: openai.AsyncOpenAI) -> Any:
    return await client.responses.create(
        model="qwen", input="hello", text={"format": {"type": "json_object"}}
    )


@pytest.mark.parametrize(
    "call", [openai_json, openai_forced_tool, openai_responses_json], ids=named
)
async def test_openai_gets_one_429_where_text_would_break_it(
    stand: Any, oai: Any, call: Any
) -> None:
    await stand.show_usage(FULL)
    async with requests_at_envoy(stand, 1):
        with pytest.raises(openai.RateLimitError) as caught:
            await call(oai("marketing"))
    assert caught.value.code == "kv_watermark"
    assert caught.value.response.headers["retry-after"] == "15"
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_anthropic_gets_one_429_where_text_would_break_it(stand: Any, claude: Any) -> None:
    await stand.show_usage(FULL)
    tools: Any = [{"name": "pay", "input_schema": SCHEMA}]
    choice: Any = {"type": "any"}
    async with requests_at_envoy(stand, 1):
        with pytest.raises(anthropic.RateLimitError) as caught:
            await claude("marketing").messages.create(
                model="qwen", messages=HELLO, max_tokens=4, tools=tools, tool_choice=choice
            )
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")


async def test_errors_are_the_clients_own(stand: Any, oai: Any, claude: Any) -> None:
    long: Any = [{"role": "user", "content": "word " * 20_000}]
    async with requests_at_envoy(stand, 2):
        with pytest.raises(openai.BadRequestError) as caught:
            await oai("pay").chat.completions.create(model="qwen", messages=long)
        assert (caught.value.code, caught.value.type) == (
            "prompt_too_long",
            "context_length_exceeded",
        )
        with pytest.raises(anthropic.BadRequestError) as refused:
            await claude("pay").messages.create(model="qwen", messages=long, max_tokens=4)
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert "limit 4096" in refused.value.message


async def test_an_engines_own_error_comes_through_unchanged(
    stand: Any, oai: Any, claude: Any
) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
        await oai("pay").completions.create(model="qwen", prompt="abcd", max_tokens=0)
    with pytest.raises(anthropic.NotFoundError, match="`nope` does not exist"):
        await claude("pay").messages.create(model="nope", messages=HELLO, max_tokens=4)
