"""Envoy reads the token usage out of every kind of answer, and harms none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = b'{"model":"tiny"}'
World = Callable[..., Awaitable[Any]]


def admit(response: Any) -> None:
    response.dynamic_metadata.update({"tidegate": {"verdict": "admit"}})


def sse(*events: dict[str, Any], end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events) + end).encode()


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}'),
        ("application/json", b'{"usage": {"input_tokens": 7, "output_tokens": 3}}'),
        (
            "text/event-stream; charset=utf-8",
            sse({"choices": []}, {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}),
        ),
        (
            "text/event-stream",
            sse(
                {"usage": {"prompt_tokens": 7, "completion_tokens": 1}},
                {"usage": {"prompt_tokens": 7, "completion_tokens": 3}},
            ),
        ),
        (
            "text/event-stream",
            sse(
                {"response": {"usage": None}},
                {"response": {"text": "x" * 65536, "usage": {"input_tokens": 7, "output_tokens": 3}}},
                end="",
            ),
        ),
        (
            "text/event-stream",
            sse(
                {"message": {"usage": {"input_tokens": 7, "output_tokens": 0}}},
                {"usage": {"output_tokens": 3}},
                end="",
            ),
        ),
    ],
    ids=["chat", "messages", "chat stream", "continuous usage", "responses stream", "messages stream"],
)  # fmt: skip
async def test_envoy_reads_the_usage(world: World, content_type: str, body: bytes) -> None:
    envoy = await world()
    envoy.processor.on_body(admit)

    async def piecemeal(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": content_type})
        await response.prepare(request)
        for start in range(0, len(body), 1000):
            await response.write(body[start : start + 1000])
        return response

    envoy.engine.answer = piecemeal
    assert await envoy.post(CHAT, BODY) == (200, body)
    metadata = (await envoy.processor.next_log()).common_properties.metadata.filter_metadata
    assert dict(metadata["tidegate.usage"].items()) == {"prompt_tokens": 7, "completion_tokens": 3}


async def test_a_response_over_the_buffer_limit_passes(world: World) -> None:
    envoy = await world()
    body = json.dumps({"data": "x" * (4 << 20)}).encode()

    async def large(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    envoy.engine.answer = large
    assert await envoy.post(CHAT, BODY) == (200, body)


TEXT = sse(
    {"choices": [{"delta": {"content": 'data: "choices":[],"usage":{}'}}]},
    {"choices": [{"delta": {"content": "\u00e4"}}], "usage": {"completion_tokens": 2}},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    end="",
)
USAGE = sse({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}, end="")
DONE = b"data: [DONE]\n\n"


def left_out(response: Any) -> None:
    own = {"verdict": "admit", "usage_chunk": "left_out"}
    response.dynamic_metadata.update({"tidegate": own})


def in_parts(body: bytes, size: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(body), size):
            await response.write(body[start : start + size])
            await asyncio.sleep(0.002)  # or they would come to Envoy as one
        return response

    return answer


@pytest.mark.parametrize("size", [7, 50, 1000])
@pytest.mark.parametrize("compact", [True, False])
async def test_the_usage_chunk_is_left_out_where_the_client_did_not_ask(
    world: World, size: int, compact: bool
) -> None:
    envoy = await world()
    envoy.processor.on_body(left_out)
    usage = USAGE.replace(b'": ', b'":') if compact else USAGE
    text = TEXT.replace(b'": ', b'":') if compact else TEXT
    envoy.engine.answer = in_parts(text + usage + DONE, size)
    assert await envoy.post(CHAT, BODY) == (200, text + DONE)
    metadata = (await envoy.processor.next_log()).common_properties.metadata.filter_metadata
    assert dict(metadata["tidegate.usage"].items()) == {"prompt_tokens": 7, "completion_tokens": 3}


async def test_lines_may_end_as_on_other_systems(world: World) -> None:
    envoy = await world()
    envoy.processor.on_body(left_out)
    body, text = (each.replace(b"\n", b"\r\n") for each in (TEXT + USAGE + DONE, TEXT))
    envoy.engine.answer = in_parts(body, 50)
    status, received = await envoy.post(CHAT, BODY)
    assert status == 200
    # An empty line more or less ends no event.
    assert received.replace(b"\r\n\r\n\r\n", b"\r\n\r\n") == text + DONE.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("size", [9, 1000])
async def test_a_stream_that_breaks_off_loses_nothing(world: World, size: int) -> None:
    envoy = await world()
    envoy.processor.on_body(left_out)
    envoy.engine.answer = in_parts(TEXT[:-20], size)
    assert await envoy.post(CHAT, BODY) == (200, TEXT[:-20])


async def test_who_asked_gets_the_chunk(world: World) -> None:
    envoy = await world()
    envoy.processor.on_body(admit)
    envoy.engine.answer = in_parts(TEXT + USAGE + DONE, 50)
    assert await envoy.post(CHAT, BODY) == (200, TEXT + USAGE + DONE)


async def test_whole_answers_and_encoded_ones_are_not_looked_at(world: World) -> None:
    envoy = await world()
    envoy.processor.on_body(left_out)

    async def encoded(_: web.Request) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "content-encoding": "x-unknown"}
        return web.Response(body=USAGE, headers=headers)

    async def whole(_: web.Request) -> web.StreamResponse:
        return web.Response(body=USAGE, content_type="application/json")

    for answer in (encoded, whole):
        envoy.engine.answer = answer
        assert await envoy.post(CHAT, BODY) == (200, USAGE)


async def test_engines_are_asked_for_their_load_and_clients_do_not_hear_of_it(world: World) -> None:
    envoy = await world()
    report = 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.5}}'

    async def telling(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers={"endpoint-load-metrics": report})

    envoy.engine.answer = telling
    headers = {"endpoint-load-metrics-format": "TEXT"}
    async with envoy.client.post(f"{envoy.url}{CHAT}", data=BODY, headers=headers) as response:
        assert "endpoint-load-metrics" not in response.headers
    assert envoy.engine.seen[0].headers["endpoint-load-metrics-format"] == "JSON"
    told = envoy.processor.requests[1].response_headers.headers.headers
    values = {header.key: header.raw_value.decode() for header in told}
    assert values["endpoint-load-metrics"] == report


@pytest.mark.parametrize("usage_source", ["envoy", "ext_proc"])
async def test_engines_are_asked_for_answers_that_are_not_compressed(
    world: World, usage_source: str
) -> None:
    envoy = await world(f"envoy: {{usage_source: {usage_source}}}")
    await envoy.post(CHAT, BODY, accept_encoding="gzip, br")
    await envoy.post("/v1/models", BODY)
    asked = [seen.headers["accept-encoding"] for seen in envoy.engine.seen]
    assert asked == ["identity", "identity"]
