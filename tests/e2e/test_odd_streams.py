"""Streams as other servers and proxies write them: stopped, read, or passed, through a real Envoy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from extproc.openai.sse import EventReader
from extproc.sim.emulator.oddities import Oddity

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = """
tasks: {extract: {stop_on: complete_json}}
envoy: {usage_source: ext_proc}
"""
JSON = '{"name": "Ada", "tags": ["}", "\\u00e4"]}'
CALL = {
    "model": "qwen",
    "messages": [{"role": "user", "content": "hello"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 60,
    "ignore_eos": True,
}
ALL = (Oddity.NO_SPACE, Oddity.CRLF, Oddity.COMMENTS, Oddity.SPLIT, Oddity.USAGE_EVERYWHERE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    async with opened(SETTINGS, engines=1) as stand:
        yield stand


async def ask(
    stand: Any, *oddities: Oddity, task: str = "extract", **call: Any
) -> tuple[str, list[Any]]:
    """Return the text of an answer, the arguments of a tool call with it, and its chunks."""
    (engine,) = stand.engines
    engine.faults = replace(engine.faults, text=JSON, stream=oddities)
    reply = await stand.http.post(
        f"{stand.url}/v1/chat/completions",
        json={**CALL, **call},
        headers={"x-tenant-id": "service", "x-task-type": task},
    )
    reader = EventReader()
    events = [*reader.feed(reply.content), *reader.end()]
    said = [event.data for event in events if event.data]
    assert said.pop() == b"[DONE]"
    chunks = [json.loads(data) for data in said]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    text = "".join(delta.get("content", "") for delta in deltas)
    await stand.settled()
    return text + "".join(call["function"]["arguments"] for call in calls), chunks


@pytest.mark.parametrize("oddities", [(), *((each,) for each in ALL), ALL], ids="+".join)
async def test_odd_streams_are_stopped(stand: Any, oddities: tuple[Oddity, ...]) -> None:
    text, chunks = await ask(stand, *oddities)

    assert text == JSON
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert 0 < chunks[-1]["usage"]["completion_tokens"] < 60


@pytest.mark.parametrize("oddities", [(), ALL, (Oddity.GZIP,)], ids="+".join)
async def test_usage_of_odd_streams_is_read(stand: Any, oddities: tuple[Oddity, ...]) -> None:
    _, chunks = await ask(stand, *oddities, task="")

    assert chunks[-1]["usage"]["completion_tokens"] == 60
    seen = await stand.metrics()
    grown = stand.grown(seen, "tenant_tokens_total", tenant="service", kind="output")
    assert grown == 60


async def test_usage_that_the_client_did_not_ask_for_is_read_and_left_out(stand: Any) -> None:
    _, chunks = await ask(stand, task="", stream_options=None)

    assert all("usage" not in chunk for chunk in chunks)
    (received,) = await stand.received()
    assert json.loads(received.body)["stream_options"] == {"include_usage": True}
    seen = await stand.metrics()
    assert stand.grown(seen, "tenant_tokens_total", tenant="service", kind="output") == 60


@pytest.mark.parametrize("oddity", [Oddity.GZIP, Oddity.TOOL_CALL])
async def test_what_cannot_be_ended_well_goes_on(stand: Any, oddity: Oddity) -> None:
    """Nothing can be written into gzip, and half of a tool call would be run."""
    text, chunks = await ask(stand, oddity)

    assert text.startswith(JSON)
    assert len(text) > len(JSON)
    assert chunks[-1]["usage"]["completion_tokens"] == 60
