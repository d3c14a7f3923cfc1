"""Watching a Tidegate that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc import aio

from extproc.console.api import ControlApi
from extproc.console.watch import Watch
from extproc.control.pb import state_pb2


class Script(ControlApi):
    """An API whose state is as a test puts it; None ends the connection."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[state_pb2.State | grpc.StatusCode | None] = asyncio.Queue()
        self.tokens: list[str] = []

    async def states(self, token: str) -> AsyncGenerator[state_pb2.State]:
        self.tokens.append(token)
        while (said := await self.said.get()) is not None:
            if isinstance(said, grpc.StatusCode):
                raise aio.AioRpcError(said, aio.Metadata(), aio.Metadata())
            yield said


@asynccontextmanager
async def watching(api: Script, silence: float = 60) -> AsyncIterator[Watch]:
    watch = Watch(api, "viewer", again=0, silence=silence)
    running = asyncio.ensure_future(watch.run())
    try:
        async with asyncio.timeout(10):
            yield watch
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(watch: Watch, problem: str, version: str = "") -> None:
    while watch.problem != problem or (
        version and (not watch.state or watch.state.version != version)
    ):
        await watch.news(10)


async def test_it_says_why_there_is_no_news_and_goes_on_when_there_is() -> None:
    api = Script()
    async with watching(api) as watch:
        assert (watch.state, watch.problem) == (None, "UNAVAILABLE")
        api.said.put_nowait(state_pb2.State(version="1"))
        await until(watch, "", "1")
        for wrong in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE):
            api.said.put_nowait(wrong)
            await until(watch, wrong.name)
        assert watch.state is not None, "the last that is known is still shown"
        api.said.put_nowait(state_pb2.State(version="2"))
        await until(watch, "", "2")
        api.said.put_nowait(None)
        await until(watch, "UNAVAILABLE")
    assert set(api.tokens) == {"viewer"}


async def test_a_tidegate_that_falls_silent_is_asked_anew() -> None:
    api = Script()
    async with watching(api, silence=0.01) as watch:
        api.said.put_nowait(state_pb2.State(version="1"))
        await until(watch, "", "1")
        await until(watch, "DEADLINE_EXCEEDED")
        api.said.put_nowait(state_pb2.State(version="2"))
        await until(watch, "", "2")


async def test_news_are_not_waited_for_in_vain() -> None:
    async with watching(Script()) as watch:
        await watch.news(0.01)
