"""Answers that end when their task has what it wants: well formed, on a connection that lives on,
and the engine stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TASKS = """
tasks:
  extract: {stop_on: complete_json}
  prose: {stop_on: [repetition, whitespace], stop: [alpha, beta, gamma, delta, "the gate"]}
"""
JSON = '{"name": "Ada", "tags": ["}", "\\u00e4"]}'
PREAMBLE = "Here it is:\n"
TEXT = PREAMBLE + JSON
ENDLESS = 2000
"""Tokens: about half a minute."""
TOKENS_PER_SECOND = 60
"""Of a single stream, by the emulated engine's cost of a step, rounded down."""
MESSAGES = [{"role": "user", "content": "hello"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": ENDLESS},
    "/v1/completions": {"prompt": "hello", "max_tokens": ENDLESS},
    "/v1/responses": {"input": "hello", "max_output_tokens": ENDLESS},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": ENDLESS},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    async with opened(TASKS, engines=1) as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="module")
async def talking(stand: Any) -> Any:
    """The stand; its engine says something that a task wants, and then goes on and on."""
    (engine,) = stand.engines
    engine.faults = replace(engine.faults, text=TEXT)
    return stand


def said(path: str, body: bytes) -> tuple[str, list[Any]]:
    """Return the text of a stream, and its events."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(line) if line != "[DONE]" else line for line in lines]
    objects = [each for each in events if isinstance(each, dict)]
    match path:
        case "/v1/chat/completions":
            choices = [choice for each in objects for choice in each["choices"]]
            return "".join(choice["delta"].get("content", "") for choice in choices), events
        case "/v1/completions":
            return "".join(choice["text"] for each in objects for choice in each["choices"]), events
        case "/v1/responses":
            wanted = "response.output_text.delta"
            return "".join(each["delta"] for each in objects if each["type"] == wanted), events
        case _:
            wanted = "content_block_delta"
            return "".join(e["delta"]["text"] for e in objects if e["type"] == wanted), events


LAST = {
    "/v1/chat/completions": "[DONE]",
    "/v1/completions": "[DONE]",
    "/v1/responses": "response.completed",
    "/v1/messages": "message_stop",
}


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("path", CALLS)
async def test_complete_json_ends_the_stream_and_stops_the_engine(
    talking: Any, path: str, http2: bool
) -> None:
    (engine,) = talking.engines
    before = engine.engine.generation_tokens_total
    headers = {"x-tenant-id": "service", "x-task-type": "extract"}
    call = {"model": "qwen", "stream": True, "ignore_eos": True, **CALLS[path]}
    async with httpx.AsyncClient(http1=not http2, http2=http2, timeout=10) as client:
        connections = await talking.envoy("http.tidegate.downstream_cx_total")
        reply = await client.post(talking.url + path, json=call, headers=headers)
        text, events = said(path, reply.content)
        assert (await client.get(talking.url + "/v1/models")).status_code == 200
        # The page of Envoy's own figures is asked for on another listener.
        assert await talking.envoy("http.tidegate.downstream_cx_total") == connections + 1

    assert reply.status_code == 200
    assert text == TEXT
    last = events[-1]
    assert (last if isinstance(last, str) else last["type"]) == LAST[path]
    await talking.settled()
    spent = engine.engine.generation_tokens_total - before
    assert spent < len(TEXT) / 4 + 40, "some 15 tokens a second after the last one that was wanted"
    seen = await talking.metrics()
    assert talking.grown(seen, "exchanges_ended_total", outcome="completed") == 1


async def test_the_engine_stops_within_a_fifth_of_a_second_of_the_clients_end(talking: Any) -> None:
    """Told in the engine's own time: what it generates after the client has all that it gets."""
    (engine,) = talking.engines
    headers = {"x-tenant-id": "service", "x-task-type": "extract"}
    call = {"model": "qwen", "stream": True, "ignore_eos": True, **CALLS["/v1/chat/completions"]}
    after = []
    for _ in range(5):
        reply = await talking.http.post(
            f"{talking.url}/v1/chat/completions", json=call, headers=headers
        )
        assert reply.content.endswith(b"data: [DONE]\n\n")
        at_the_end = engine.engine.generation_tokens_total
        await talking.settled()
        after.append(engine.engine.generation_tokens_total - at_the_end)

    assert sorted(after)[2] <= 0.2 * TOKENS_PER_SECOND, after


@pytest.mark.parametrize(
    ("heard", "outcomes"),
    [
        (b"\r\n\r\n", {"client_gone"}),
        (b"data: ", {"client_gone"}),
        (b"Here", {"client_gone"}),
        (b"[DONE]\n\n", {"client_gone", "completed"}),  # the end of the body may be on its way
    ],
    ids=["before the first token", "at the first part", "before the usage", "after [DONE]"],
)
async def test_a_client_may_leave_an_edited_stream_at_any_moment(
    talking: Any, heard: bytes, outcomes: set[str]
) -> None:
    call = {"model": "qwen", "stream": True, "ignore_eos": True, **CALLS["/v1/chat/completions"]}
    body = json.dumps(call).encode()
    reader, writer = await asyncio.open_connection(*talking.plan.envoy.split(":"))
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\nx-tenant-id: service\r\n"
    head += f"x-task-type: extract\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(heard)
    writer.transport.abort()

    await talking.settled()
    ended = await talking.ended()
    assert sum(ended.values()) == 1
    assert ended.keys() <= outcomes


async def test_a_stop_word_too_many_for_the_engine_is_found_across_parts(stand: Any) -> None:
    call = {"model": "qwen", "stream": True, **CALLS["/v1/chat/completions"], "ignore_eos": True}
    headers = {"x-tenant-id": "service", "x-task-type": "prose"}

    reply = await stand.http.post(f"{stand.url}/v1/chat/completions", json=call, headers=headers)

    text, events = said("/v1/chat/completions", reply.content)
    assert "the gate" not in text
    assert not text.endswith("the"), "held back until it was decided"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    (received,) = await stand.received()
    assert json.loads(received.body)["stop"] == ["alpha", "beta", "gamma", "delta"]
    await stand.settled()


async def test_a_runaway_ends_as_at_its_longest_length(stand: Any) -> None:
    (engine,) = stand.engines
    engine.faults = replace(engine.faults, text="again and again. " * 200)
    call = {"model": "qwen", "stream": True, **CALLS["/v1/completions"], "ignore_eos": True}
    headers = {"x-tenant-id": "service", "x-task-type": "prose"}

    reply = await stand.http.post(f"{stand.url}/v1/completions", json=call, headers=headers)

    _, events = said("/v1/completions", reply.content)
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1] == "[DONE]"
    await stand.settled()


async def test_a_call_that_does_not_stream_is_left_alone(talking: Any) -> None:
    call = {"model": "qwen", **CALLS["/v1/chat/completions"], "max_tokens": 30, "ignore_eos": True}
    headers = {"x-tenant-id": "service", "x-task-type": "extract"}

    reply = await talking.http.post(
        f"{talking.url}/v1/chat/completions", json=call, headers=headers
    )

    assert reply.json()["usage"]["completion_tokens"] == 30
    assert reply.json()["choices"][0]["message"]["content"].startswith(TEXT)


async def test_the_openai_client_takes_it_for_a_whole_answer(talking: Any) -> None:
    headers = {"x-tenant-id": "service", "x-task-type": "extract"}
    async with openai.AsyncOpenAI(
        base_url=f"{talking.url}/v1", api_key="none", default_headers=headers
    ) as client:
        async with client.chat.completions.stream(
            model="qwen",
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=ENDLESS,
            stream_options={"include_usage": True},
        ) as stream:
            async for _ in stream:
                pass
            chat = await stream.get_final_completion()
        async with client.responses.stream(
            model="qwen", input="hello", max_output_tokens=ENDLESS
        ) as events:
            async for _ in events:
                pass
            response = await events.get_final_response()

    assert chat.choices[0].message.content == TEXT
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None
    assert chat.usage.completion_tokens > 0
    assert (response.status, response.output_text) == ("completed", TEXT)


async def test_the_anthropic_client_takes_it_for_a_whole_answer(talking: Any) -> None:
    headers = {"x-tenant-id": "service", "x-task-type": "extract"}
    async with (
        anthropic.AsyncAnthropic(
            base_url=talking.url, api_key="none", default_headers=headers
        ) as client,
        client.messages.stream(
            model="qwen",
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=ENDLESS,
        ) as stream,
    ):
        async for _ in stream:
            pass
        message = await stream.get_final_message()

    assert message.content[0].text == TEXT  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
