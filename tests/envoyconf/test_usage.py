"""Envoy reads the token usage out of every kind of answer, and harms none."""

from __future__ import annotations

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
