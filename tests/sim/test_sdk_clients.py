"""What the real OpenAI and Anthropic clients make of the emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from extproc.sim.emulator import Emulator


@pytest.fixture
async def oai(emulator: Emulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{emulator.url}/v1", api_key="unused", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def claude(emulator: Emulator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=emulator.url, api_key="unused", max_retries=0
    ) as client:
        yield client


async def test_openai_chat(oai: openai.AsyncOpenAI) -> None:
    reply = await oai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4
    )
    assert reply.choices[0].finish_reason == "length"
    assert len((reply.choices[0].message.content or "").split()) == 4
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (14, 4)


async def test_openai_chat_stream(oai: openai.AsyncOpenAI) -> None:
    stream = await oai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_completion_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(text.split()) == 4
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


async def test_openai_completions(oai: openai.AsyncOpenAI) -> None:
    reply = await oai.completions.create(model="tiny", prompt="abcd", max_tokens=4)
    assert len(reply.choices[0].text.split()) == 4
    stream = await oai.completions.create(model="tiny", prompt="abcd", max_tokens=4, stream=True)
    assert len("".join([c.choices[0].text async for c in stream]).split()) == 4


async def test_openai_responses(oai: openai.AsyncOpenAI) -> None:
    reply = await oai.responses.create(model="tiny", input="hello", max_output_tokens=4)
    assert (reply.status, len(reply.output_text.split())) == ("incomplete", 4)
    async with oai.responses.stream(model="tiny", input="hello", max_output_tokens=4) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text == reply.output_text


async def test_openai_errors(oai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="`nope` does not exist"):
        await oai.completions.create(model="nope", prompt="abcd")
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
        await oai.completions.create(model="tiny", prompt="abcd", max_tokens=0)


async def test_openai_models(oai: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in oai.models.list()] == ["tiny"]


async def test_anthropic_messages(claude: anthropic.AsyncAnthropic) -> None:
    reply = await claude.messages.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4
    )
    block = reply.content[0]
    assert block.type == "text"
    assert len(block.text.split()) == 4
    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 4)


async def test_anthropic_messages_stream(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert len(text.split()) == 4
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 4)


async def test_anthropic_errors(claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="`nope` does not exist"):
        await claude.messages.create(
            model="nope", messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
