"""The real SDKs against streams that we ended: a whole answer, and no error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import endpoint_of
from extproc.openai.requests import read
from extproc.openai.streams import Asked, Ending, open_editor
from extproc.sim.emulator.bodies import Bodies, ChatBodies, CompletionsBodies, Head, Output
from extproc.sim.emulator.event_bodies import MessagesBodies, ResponsesBodies
from extproc.sim.emulator.requests import Endpoint, read_call
from tests.http_server import answering

BODIES: dict[Endpoint, type[Bodies]] = {
    Endpoint.CHAT: ChatBodies,
    Endpoint.COMPLETIONS: CompletionsBodies,
    Endpoint.RESPONSES: ResponsesBodies,
    Endpoint.MESSAGES: MessagesBodies,
}
USER: Any = [{"role": "user", "content": "hi"}]
PIECES = ['{"a": ', "[1, 2]", "} and", " more", " of it"]
STOPPED = '{"a": [1, 2]}'
EVICTED = '{"a": [1, 2]\n\n请稍候'
FINISH = "load_shedding_fallback"


class Gateway:
    """An engine behind an editor, which stops its answers or evicts them after two pieces."""

    def __init__(self) -> None:
        self.evicts = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kind = Endpoint(request.path)
        call = read_call(kind, body, model="qwen", max_model_len=4096)
        engine = BODIES[kind](Head("1", 17, "qwen", call))
        chunks = [engine.opening()]
        for number, piece in enumerate(PIECES):
            chunks.append(engine.delta(0, piece, number + 1, None))
        chunks.append(engine.closing([Output("".join(PIECES), len(PIECES), "stop")]))
        endpoint = endpoint_of(request.path)
        assert endpoint is not None
        editor = open_editor(
            Asked.by(read(endpoint, body)),
            content_type="text/event-stream",
            early_stop=EarlyStop() if self.evicts else EarlyStop(complete_json=True),
        )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks[:3] if self.evicts else chunks:
            await response.write(editor.feed(chunk).data)
        edit = editor.cut(Ending(FINISH, "请稍候", {"reason": "evicted"}))
        assert edit is not None
        await response.write(edit.data)
        return response


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    gateway = Gateway()
    async with answering("POST", "/{path:.*}", gateway.answer) as address:
        yield gateway, f"http://{address}"


@pytest.fixture
async def client(gateway: tuple[Gateway, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{gateway[1]}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        yield client


EVICTS = pytest.mark.parametrize("evicts", [False, True], ids=["stopped", "evicted"])


@EVICTS
async def test_chat(gateway: tuple[Gateway, str], client: openai.AsyncOpenAI, evicts: bool) -> None:
    gateway[0].evicts = evicts
    options: Any = {"stream_options": {"include_usage": True}}
    async with client.chat.completions.stream(model="qwen", messages=USER, **options) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == (EVICTED if evicts else STOPPED)
    assert answer.choices[0].finish_reason == (FINISH if evicts else "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == (2 if evicts else 3)


@EVICTS
async def test_completions(
    gateway: tuple[Gateway, str], client: openai.AsyncOpenAI, evicts: bool
) -> None:
    gateway[0].evicts = evicts
    stream = await client.completions.create(model="qwen", prompt="hi", stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    assert "".join(choice.text for choice in choices) == (EVICTED if evicts else STOPPED)
    assert choices[-1].finish_reason == (FINISH if evicts else "stop")


@EVICTS
async def test_responses(
    gateway: tuple[Gateway, str], client: openai.AsyncOpenAI, evicts: bool
) -> None:
    gateway[0].evicts = evicts
    async with client.responses.stream(model="qwen", input="hi") as stream:
        answer = await stream.get_final_response()
    assert answer.output_text == (EVICTED if evicts else STOPPED)
    assert answer.status == "completed"
    assert answer.metadata == ({"tidegate_reason": "evicted"} if evicts else None)


@EVICTS
async def test_messages(gateway: tuple[Gateway, str], evicts: bool) -> None:
    gateway[0].evicts = evicts
    async with (
        anthropic.AsyncAnthropic(base_url=gateway[1], api_key="k", max_retries=0) as claude,
        claude.messages.stream(model="qwen", max_tokens=99, messages=USER) as stream,
    ):
        answer = await stream.get_final_message()
    assert [block.text for block in answer.content if block.type == "text"] == [
        EVICTED if evicts else STOPPED
    ]
    assert answer.stop_reason == (FINISH if evicts else "end_turn")
    assert answer.usage.output_tokens == (2 if evicts else 3)


async def test_json_that_was_stopped_is_json(client: openai.AsyncOpenAI) -> None:
    options: Any = {"response_format": {"type": "json_object"}}
    async with client.chat.completions.stream(model="qwen", messages=USER, **options) as stream:
        answer = await stream.get_final_completion()
    assert json.loads(answer.choices[0].message.content or "") == {"a": [1, 2]}
