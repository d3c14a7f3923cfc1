"""The real SDKs against our replies: they parse, show the message, and do not come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from extproc.openai.endpoints import endpoint_of
from extproc.openai.replies import fallback
from extproc.openai.requests import read
from tests.http_server import answering

MESSAGE = "我们很忙\u2028请在 15 秒后重试。\n"
FINISH = "load_shedding_fallback"
USER: Any = [{"role": "user", "content": "hi"}]


class Shedding:
    """A server that sheds every call."""

    def __init__(self) -> None:
        self.calls = 0
        self.refusal = False

    async def answer(self, request: web.Request) -> web.Response:
        self.calls += 1
        endpoint = endpoint_of(request.path_qs)
        assert endpoint is not None
        reply = fallback(
            read(endpoint, await request.read()),
            ident=str(self.calls),
            created=1700000000,
            message=MESSAGE,
            finish_reason=FINISH,
            reason="kv_watermark",
            ticket="t1",
            retry_after=1,
            refusal=self.refusal,
        )
        return web.Response(status=reply.status, headers=dict(reply.headers), body=reply.body)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Shedding, str]]:
    shedding = Shedding()
    async with answering("POST", "/{path:.*}", shedding.answer) as address:
        yield shedding, f"http://{address}"


@pytest.fixture
async def shedding(server: tuple[Shedding, str]) -> Shedding:
    return server[0]


@pytest.fixture
async def client(server: tuple[Shedding, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server[1]}/v1", api_key="k") as client:
        yield client
    assert server[0].calls == 1


@pytest.fixture
async def claude(server: tuple[Shedding, str]) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server[1], api_key="k") as claude:
        yield claude
    assert server[0].calls == 1


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="qwen", messages=USER)
    assert answer.id == "chatcmpl-promo-shedded-1"
    assert answer.model == "qwen"
    assert answer.choices[0].message.content == MESSAGE
    assert answer.choices[0].finish_reason == FINISH
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0
    assert answer.model_extra == {"tidegate": {"reason": "kv_watermark", "ticket": "t1"}}


@pytest.mark.parametrize("include_usage", [True, False])
async def test_chat_stream(client: openai.AsyncOpenAI, include_usage: bool) -> None:
    stream = await client.chat.completions.create(
        model="qwen",
        messages=USER,
        stream=True,
        stream_options={"include_usage": include_usage},
    )
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == MESSAGE
    assert [choice.finish_reason for choice in choices] == [None, None, FINISH]
    assert (chunks[-1].usage is not None) is include_usage


async def test_chat_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="qwen", messages=USER) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == MESSAGE
    assert answer.choices[0].finish_reason == FINISH


async def test_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="qwen", prompt="hi")
    assert answer.choices[0].text == MESSAGE
    assert answer.choices[0].finish_reason == FINISH


@pytest.mark.parametrize("include_usage", [True, False])
async def test_completion_stream(client: openai.AsyncOpenAI, include_usage: bool) -> None:
    stream = await client.completions.create(
        model="qwen", prompt="hi", stream=True, stream_options={"include_usage": include_usage}
    )
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == MESSAGE
    assert choices[-1].finish_reason == FINISH
    assert (chunks[-1].usage is not None) is include_usage


async def test_response(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="qwen", input="hi")
    assert answer.output_text == MESSAGE
    assert answer.status == "completed"
    assert answer.metadata == {"tidegate_reason": "kv_watermark", "ticket": "t1"}


async def test_response_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="qwen", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(9))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == [
        MESSAGE
    ]


async def test_response_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="qwen", input="hi") as stream:
        answer = await stream.get_final_response()
    assert answer.output_text == MESSAGE


async def test_message(claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(model="qwen", max_tokens=9, messages=USER)
    assert answer.id == "msg_promo_shedded_1"
    assert answer.content[0].type == "text"
    assert answer.content[0].text == MESSAGE
    assert answer.stop_reason == FINISH


async def test_message_stream(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model="qwen", max_tokens=9, messages=USER) as stream:
        text = "".join([part async for part in stream.text_stream])
        answer = await stream.get_final_message()
    assert text == MESSAGE
    assert answer.stop_reason == FINISH


# Structured calls.

FORMAT: Any = {"type": "json_object"}


async def test_a_structured_call_fails_at_once(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="qwen", messages=USER, response_format=FORMAT)
    assert caught.value.code == "kv_watermark"
    assert caught.value.response.headers["retry-after"] == "1"


async def test_a_structured_stream_fails_at_once(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(
            model="qwen", messages=USER, response_format=FORMAT, stream=True
        )


async def test_a_forced_tool_fails_at_once(claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.RateLimitError) as caught:
        await claude.messages.create(
            model="qwen", max_tokens=9, messages=USER, tools=[], tool_choice={"type": "any"}
        )
    assert caught.value.type == "rate_limit_error"


Ask = Callable[[openai.AsyncOpenAI], Awaitable[str | None]]


async def _chat_refusal(client: openai.AsyncOpenAI) -> str | None:
    answer = await client.chat.completions.create(
        model="qwen", messages=USER, response_format=FORMAT
    )
    return answer.choices[0].message.refusal


async def _chat_stream_refusal(client: openai.AsyncOpenAI) -> str | None:
    async with client.chat.completions.stream(
        model="qwen", messages=USER, response_format=FORMAT
    ) as stream:
        answer = await stream.get_final_completion()
    return answer.choices[0].message.refusal


async def _response_refusal(client: openai.AsyncOpenAI) -> str | None:
    answer = await client.responses.create(model="qwen", input="hi", text={"format": FORMAT})
    return _refusal(answer.output[0])


async def _response_stream_refusal(client: openai.AsyncOpenAI) -> str | None:
    stream = client.responses.stream(model="qwen", input="hi", text={"format": FORMAT})
    async with stream as events:
        answer = await events.get_final_response()
    return _refusal(answer.output[0])


def _refusal(item: Any) -> str | None:
    refusal: str | None = item.content[0].refusal
    return refusal


@pytest.mark.parametrize(
    "ask", [_chat_refusal, _chat_stream_refusal, _response_refusal, _response_stream_refusal]
)
async def test_the_refusal_form(shedding: Shedding, client: openai.AsyncOpenAI, ask: Ask) -> None:
    shedding.refusal = True
    assert await ask(client) == MESSAGE


async def test_embeddings_have_no_fallback(server: tuple[Shedding, str]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[1]}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.embeddings.create(model="qwen", input="hi")
    assert caught.value.status_code == 503
    assert caught.value.code == "kv_watermark"
