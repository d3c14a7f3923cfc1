"""A real gRPC server with the processor and the access log, and streams to it as Envoy opens them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc import aio
from grpc_health.v1 import health_pb2

from extproc.core.records import Ended
from extproc.edge import access_log, server, wire
from extproc.edge.access_log import AccessLog
from extproc.edge.processor import Processor

PROCESS = f"/{wire.SERVICE}/{wire.METHOD}"
LOGS = f"/{access_log.SERVICE}/{access_log.METHOD}"


def body(content: bytes) -> Any:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=content, end_of_stream=True))


def response_headers() -> Any:
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders())


@asynccontextmanager
async def served(
    gatekeeper: Any,
    directory: Path,
    ended: list[Ended] | None = None,
    heard: list[Any] | None = None,
) -> AsyncIterator[tuple[Processor, aio.Channel]]:
    processor = Processor(gatekeeper)
    log = AccessLog(
        (ended if ended is not None else []).append, None if heard is None else heard.append
    )
    address = f"unix://{directory / 'tidegate.sock'}"
    grpc_server, health = server.build(
        (processor.handler(), log.handler()), address, max_body=1 << 20
    )
    await grpc_server.start()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    try:
        async with aio.insecure_channel(address.replace("unix://", "unix:")) as channel:
            yield processor, channel
    finally:
        await grpc_server.stop(0)


def stream(channel: aio.Channel) -> Any:
    return channel.stream_stream(
        PROCESS,
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )()


async def until_idle(processor: Processor) -> None:
    async with asyncio.timeout(5):
        await processor.idle()
    assert processor.streams == 0


def part(content: bytes, *, last: bool = False) -> Any:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=content, end_of_stream=last))


class ScriptedContext:
    """A servicer context that cancels at the given await, or gives the messages in turn."""

    def __init__(self, messages: list[Any], cancel_at: int) -> None:
        self._messages = list(messages)
        self._awaits = 0
        self._cancel_at = cancel_at
        self.written: list[bytes] = []

    def _await(self) -> None:
        self._awaits += 1
        if self._awaits == self._cancel_at:
            raise asyncio.CancelledError

    async def read(self) -> Any:
        self._await()
        return self._messages.pop(0) if self._messages else aio.EOF

    async def write(self, reply: bytes) -> None:
        self._await()
        self.written.append(reply)
