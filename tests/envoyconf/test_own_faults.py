"""Faults of Tidegate's own code while a real Envoy waits: what is declared comes of them, and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extproc import app
from extproc.app import Tidegate
from extproc.config import parse
from extproc.edge import admission
from extproc.openai.sse import Event
from extproc.openai.streams.event_editor import EventEditor

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
CONFIG = """
listen: {{processor: "unix://{directory}/extproc.sock", http: "127.0.0.1:{port}"}}
identity: {{sources: [{{header: {{name: x-tenant-id, trusted: true}}}}]}}
tasks: {{extract: {{stop_on: complete_json}}}}
requests: {{faults: {faults}}}
pools: {{tiny: {{scrape: {{enabled: false}}, endpoints: {{static: ["127.0.0.1:9"]}}}}}}
"""
HELLO = b'{"model": "tiny", "max_tokens": 999999, "messages": [{"role": "user", "content": "hi"}]}'
World = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def serving(directory: Path, port: int, faults: str) -> AsyncIterator[Tidegate]:
    """Serve a real Tidegate where `world` looks for its processor."""
    made = app.build(parse(CONFIG.format(directory=directory, port=port, faults=faults)))
    stop, started = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.serve(made, stop, started.set))
        await started.wait()
        try:
            yield made
        finally:
            stop.set()


def faults(tidegate: Tidegate, place: str) -> float | None:
    return tidegate.metrics.registry.get_sample_value("tidegate_faults_total", {"place": place})


@pytest.mark.parametrize("declared", ["reject", "pass"])
async def test_a_request_that_we_fail_to_judge_is_refused_or_passes_as_declared(
    world: World,
    tmp_path: Path,
    unused_tcp_port: int,
    monkeypatch: pytest.MonkeyPatch,
    declared: str,
) -> None:
    async with serving(tmp_path, unused_tcp_port, declared) as tidegate:
        envoy = await world(dead_processor=True)
        with monkeypatch.context() as broken:
            broken.setattr(admission, "read", lambda _endpoint, body: body.a_fault_of_ours)
            status, answer = await envoy.post(CHAT, HELLO)

        if declared == "reject":
            assert status == 500
            assert json.loads(answer)["error"]["code"] == "internal_error"
            assert envoy.engine.seen == []
        else:
            assert status == 200
            assert [seen.body for seen in envoy.engine.seen] == [HELLO]
        assert faults(tidegate, "judge") == 1
        assert (await envoy.post(CHAT, HELLO))[0] == 200
        assert envoy.engine.seen[-1].body != HELLO, "judged, and clamped"
        await asyncio.wait_for(tidegate.processor.idle(), 5)
        assert tidegate.pools["tiny"].in_flight == 0


async def test_a_stream_that_we_fail_to_edit_reaches_its_client_whole(
    world: World, tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = b'data: {"choices": [{"index": 0, "delta": {"content": "%d "}}]}\n\n'
    parts = [chunk % number for number in range(20)]

    async def streaming(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part[:30])
            await asyncio.sleep(0.002)  # or all would come to Envoy as one
            await response.write(part[30:])
        return response

    sound, taken = EventEditor._take, 0

    def failing(self: EventEditor, event: Event) -> bytes:
        nonlocal taken
        taken += 1
        if taken == 3:
            raise RuntimeError("a fault of ours")
        return sound(self, event)

    monkeypatch.setattr(EventEditor, "_take", failing)
    async with serving(tmp_path, unused_tcp_port, "reject") as tidegate:
        envoy = await world(dead_processor=True)
        envoy.engine.answer = streaming
        call = HELLO.replace(
            b"{", b'{"stream": true, "stream_options": {"include_usage": true}, ', 1
        )

        for _ in range(2):
            taken = 0
            assert await envoy.post(CHAT, call, x_task_type="extract") == (200, b"".join(parts))
            assert taken == 3
        assert faults(tidegate, "edit") == 2
