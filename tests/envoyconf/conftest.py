"""Peers for a real Envoy: a scripted processor, an engine, and Envoy itself on free ports."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from grpc_health.v1 import health, health_pb2_grpc

from extproc.config import Config, parse
from extproc.envoyconf.binary import find_envoy
from extproc.envoyconf.bootstrap import bootstrap

ANY_PORT = "127.0.0.1:0"


class Processor:
    """A processor that answers as the test says, and keeps what Envoy told it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.logged: asyncio.Queue[Any] = asyncio.Queue()
        self.reply: Callable[[Any], Any] = self.unchanged
        self.refusals = 0
        self.health = health.aio.HealthServicer()

    @staticmethod
    def unchanged(request: Any) -> Any:
        kind = request.WhichOneof("request")
        response = ProcessingResponse()
        getattr(response, kind).SetInParent()
        return response

    @property
    def kinds(self) -> list[str]:
        return [request.WhichOneof("request") for request in self.requests]

    def on_body(self, answer: Callable[[Any], None]) -> None:
        """Let ``answer`` fill in the response to a request body; all else is unchanged."""

        def reply(request: Any) -> Any:
            response = self.unchanged(request)
            if request.WhichOneof("request") == "request_body":
                answer(response)
            return response

        self.reply = reply

    async def process(
        self, messages: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many pending requests")
        async for request in messages:
            self.requests.append(request)
            response = self.reply(request)
            if response is not None:
                yield response

    async def log(self, messages: AsyncIterator[Any], _: Any) -> Any:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                self.logged.put_nowait(entry)
        return StreamAccessLogsResponse()

    async def next_log(self) -> HTTPAccessLogEntry:
        return await asyncio.wait_for(self.logged.get(), 5)

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[None]:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        handlers = {
            "envoy.service.ext_proc.v3.ExternalProcessor": (
                "Process",
                grpc.stream_stream_rpc_method_handler(
                    self.process,
                    ProcessingRequest.FromString,
                    ProcessingResponse.SerializeToString,
                ),
            ),
            "envoy.service.accesslog.v3.AccessLogService": (
                "StreamAccessLogs",
                grpc.stream_unary_rpc_method_handler(
                    self.log,
                    StreamAccessLogsMessage.FromString,
                    StreamAccessLogsResponse.SerializeToString,
                ),
            ),
        }
        for service, (method, handler) in handlers.items():
            generic = grpc.method_handlers_generic_handler(service, {method: handler})
            server.add_generic_rpc_handlers((generic,))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        server.add_insecure_port(address)
        await server.start()
        try:
            yield
        finally:
            await server.stop(0)


@dataclasses.dataclass
class Seen:
    """A request as the engine got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Engine:
    """An engine that answers as the test says, and keeps what Envoy sent it."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = self.fine

    @staticmethod
    async def fine(_: web.Request) -> web.StreamResponse:
        return web.json_response({"usage": {"prompt_tokens": 7, "completion_tokens": 3}})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.method, request.raw_path, headers, b"")
        self.seen.append(seen)
        seen.body = await request.read()
        return await self.answer(request)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"{host}:{port}"
        finally:
            await runner.cleanup()


@dataclasses.dataclass
class World:
    """A running Envoy between a client, a processor and engines."""

    url: str
    admin: str
    processor: Processor
    engines: list[Engine]
    client: aiohttp.ClientSession
    addresses: list[str]

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    async def post(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(f"{self.url}{path}", data=body, headers=sent) as response:
            return response.status, await response.read()


@asynccontextmanager
async def _running(text: str, directory: Path, *arguments: str) -> AsyncIterator[tuple[str, str]]:
    """Start Envoy; give the URLs of its first listener and its admin endpoint."""
    file, admin_file, log = (directory / name for name in ("envoy.yaml", "admin", "log"))
    file.write_text(text, encoding="utf-8")
    with log.open("wb") as errors:
        program = await asyncio.create_subprocess_exec(
            find_envoy(), "-c", str(file), "--admin-address-path", str(admin_file),
            "--concurrency", "1", "--disable-hot-restart", "-l", "error", *arguments,
            cwd=directory, stderr=errors,
        )  # fmt: skip
    try:
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            while True:
                if program.returncode is not None:
                    raise RuntimeError(log.read_text(encoding="utf-8"))
                admin = f"http://{admin_file.read_text()}" if admin_file.exists() else ""
                if admin and await _ready(session, admin):
                    break
                await asyncio.sleep(0.02)
            async with session.get(f"{admin}/listeners?format=json") as response:
                statuses = json.loads(await response.read())["listener_statuses"]
        port = statuses[0]["local_address"]["socket_address"]["port_value"]
        yield f"http://127.0.0.1:{port}", admin
    finally:
        if program.returncode is None:
            program.terminate()
        await program.wait()


async def _ready(session: aiohttp.ClientSession, admin: str) -> bool:
    try:
        async with session.get(f"{admin}/ready") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def on_any_port(config: Config, processor: str) -> Config:
    """Return it with port 0, which a configuration cannot say, and with the processor there."""
    addresses = {"listener": ANY_PORT, "admin": ANY_PORT, "processor": processor}
    envoy = config.envoy.model_copy(update=addresses)
    return config.model_copy(update={"envoy": envoy})


@pytest.fixture
def running() -> Callable[..., AbstractAsyncContextManager[tuple[str, str]]]:
    return _running


@pytest.fixture
def sample() -> Callable[..., Config]:
    """A configuration with these pools, each a list of static endpoints."""

    def make(more: str = "", /, **pools: list[str]) -> Config:
        lines = [
            f"  {name}: {{endpoints: {{static: {json.dumps(endpoints)}}}}}"
            for name, endpoints in (pools or {"tiny": ["127.0.0.1:8000"]}).items()
        ]
        return parse("\n".join(["pools:", *lines, more]))

    return make


@pytest.fixture
async def world(
    tmp_path: Path, sample: Callable[..., Config]
) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    """Start a world: ``await world(more_yaml, pools=2)``; it ends with the test."""
    async with AsyncExitStack() as stack:

        async def start(
            more: str = "",
            *,
            pools: int = 1,
            dead_processor: bool = False,
            edit: Callable[[Config, list[str]], Config] = lambda config, _: config,
            write: Callable[[Config], str] = bootstrap,
        ) -> World:
            processor, engines = Processor(), [Engine() for _ in range(pools)]
            socket = f"unix://{tmp_path}/extproc.sock"
            if not dead_processor:
                await stack.enter_async_context(processor.serving(socket))
            served = [await stack.enter_async_context(engine.serving()) for engine in engines]
            names = ["tiny", *(f"tiny-{number}" for number in range(2, pools + 1))]
            pooled = sample(more, **{n: [a] for n, a in zip(names, served, strict=True)})
            text = write(on_any_port(edit(pooled, served), socket))
            url, admin = await stack.enter_async_context(_running(text, tmp_path))
            client = await stack.enter_async_context(aiohttp.ClientSession())
            return World(url, admin, processor, engines, client, served)

        yield start
