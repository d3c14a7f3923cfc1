"""What the engines' tests share: a listener that remembers, and servers on loopback that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from extproc.core.readings import Reading

DEADLINE = 20.0
"""Seconds after which a test that waits has failed; reached by broken code only."""

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PAGE = b"""\
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:num_preemptions_total{engine="0",model_name="tiny"} 3.0
"""


@dataclass
class News:
    """A listener: ``heard`` has each call as a tuple of its name and arguments."""

    heard: list[tuple[Any, ...]] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def _hear(self, *call: object) -> None:
        self.heard.append(call)
        self._more.set()

    def joined(self, pool: str, endpoint: str) -> None:
        self._hear("joined", pool, endpoint)

    def left(self, pool: str, endpoint: str) -> None:
        self._hear("left", pool, endpoint)

    def sending(self, pool: str, endpoint: str) -> None:
        self._hear("sending", pool, endpoint)

    def observed(self, pool: str, endpoint: str, reading: Reading, sent_at: float) -> None:
        self._hear("observed", pool, endpoint, reading, sent_at)

    def failed(self, pool: str, endpoint: str, problem: str) -> None:
        self._hear("failed", pool, endpoint, problem)

    def undiscovered(self, pool: str, problem: str) -> None:
        self._hear("undiscovered", pool, problem)

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [call for call in self.heard if call[0] in kinds]

    @property
    def endpoints(self) -> set[str]:
        """The endpoints that have joined and not left."""
        here: set[str] = set()
        for kind, _, endpoint in self.of("joined", "left"):
            (here.add if kind == "joined" else here.remove)(endpoint)
        return here

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self._more.clear()
                await self._more.wait()


class Naps:
    """A sleep that ends when the test says so."""

    def __init__(self) -> None:
        self._sleeping: list[tuple[float, asyncio.Future[None]]] = []
        self._more = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        nap = (seconds, asyncio.get_running_loop().create_future())
        self._sleeping.append(nap)
        self._more.set()
        try:
            await nap[1]
        finally:
            self._sleeping.remove(nap)

    async def asleep(self, seconds: float) -> list[asyncio.Future[None]]:
        """Wait until somebody sleeps for so long."""
        async with asyncio.timeout(DEADLINE):
            while not (found := [f for s, f in self._sleeping if s == seconds and not f.done()]):
                self._more.clear()
                await self._more.wait()
        return found

    async def pass_(self, seconds: float) -> None:
        """End the sleep of those who sleep for so long, and wait until one does so again."""
        for future in await self.asleep(seconds):
            future.set_result(None)
        await self.asleep(seconds)


@pytest.fixture
def news() -> News:
    return News()


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
def page() -> bytes:
    return PAGE


@pytest.fixture
def answer() -> Callable[..., Peer]:
    """Make a peer that answers each request with this page, until the client goes."""

    def make(content: bytes = PAGE, status: str = "200 OK", headers: str = "") -> Peer:
        head = f"HTTP/1.1 {status}\r\n{headers}content-length: {len(content)}\r\n\r\n"

        async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(head.encode() + content)

        return peer

    return make


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Peer], Coroutine[Any, Any, str]]]:
    """Start a TCP server whose connections are handled by a peer; gives its ``host:port``."""
    servers: list[asyncio.Server] = []
    handlers: set[asyncio.Task[None]] = set()

    async def start(peer: Peer) -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.add(task)
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                await peer(reader, writer)
            handlers.remove(task)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
    pending = list(handlers)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
