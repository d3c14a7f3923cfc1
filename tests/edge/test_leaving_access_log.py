"""Who leaves loses nothing that Envoy logs to it: real streams over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from envoy.service.accesslog.v3 import als_pb2
from grpc import aio

from extproc.core.records import Ended
from extproc.edge import access_log, server
from extproc.edge.access_log import AccessLog

LOGS = f"/{access_log.SERVICE}/{access_log.METHOD}"


def batch(*ids: str) -> Any:
    message = als_pb2.StreamAccessLogsMessage()
    for each in ids:
        own = message.http_logs.log_entry.add().common_properties.metadata
        own.filter_metadata["tidegate"].update({"id": each})
    return message


class Envoy:
    """One of Envoy's threads, with its stream."""

    def __init__(self, channel: aio.Channel) -> None:
        self.stream: Any = channel.stream_unary(
            LOGS,
            request_serializer=als_pb2.StreamAccessLogsMessage.SerializeToString,
            response_deserializer=als_pb2.StreamAccessLogsResponse.FromString,
        )()

    async def logs(self, *ids: str) -> None:
        await self.stream.write(batch(*ids))


class Reader:
    """A Tidegate, as far as it reads."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.log = AccessLog(self._hear)

    def _hear(self, record: Ended) -> None:
        self.ids.append(record.id)

    async def has(self, *ids: str) -> None:
        async with asyncio.timeout(5):
            while sorted(self.ids) != sorted(ids):  # noqa: ASYNC110 (what it reads is told by a call)
                await asyncio.sleep(0.001)


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[Reader, aio.Channel]]:
    reader = Reader()
    address = f"unix://{directory / 'tidegate.sock'}"
    grpc_server, _ = server.build((reader.log.handler(),), address, max_body=1 << 20)
    await grpc_server.start()
    try:
        async with aio.insecure_channel(address.replace("unix://", "unix:")) as channel:
            yield reader, channel
    finally:
        await grpc_server.stop(0)


async def test_each_stream_ends_right_after_its_next_batch(tmp_path: Path) -> None:
    async with served(tmp_path) as (reader, channel):
        first, second = Envoy(channel), Envoy(channel)
        await first.logs("a")
        await second.logs("b")
        await reader.has("a", "b")

        leaving = asyncio.create_task(reader.log.leave())
        await first.logs("c", "d")
        await first.stream
        assert not leaving.done()
        await second.logs("e")
        await second.stream
        async with asyncio.timeout(5):
            await leaving
        assert sorted(reader.ids) == ["a", "b", "c", "d", "e"]


async def test_a_stream_that_begins_while_it_leaves_ends_after_its_first_batch(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (reader, channel):
        await reader.log.leave()
        late = Envoy(channel)
        await late.logs("a")
        await late.stream
        assert reader.ids == ["a"]


async def test_streams_that_have_ended_before_are_not_waited_for(tmp_path: Path) -> None:
    async with served(tmp_path) as (reader, channel):
        early = Envoy(channel)
        await early.logs("a")
        await early.stream.done_writing()
        await early.stream
        async with asyncio.timeout(5):
            await reader.log.leave()
        assert reader.ids == ["a"]


async def test_an_earlier_end_is_not_taken_for_that_of_those_that_last(tmp_path: Path) -> None:
    async with served(tmp_path) as (reader, channel):
        early, lasting = Envoy(channel), Envoy(channel)
        await early.logs("a")
        await early.stream.done_writing()
        await early.stream
        await lasting.logs("b")
        await reader.has("a", "b")
        leaving = asyncio.create_task(reader.log.leave())
        await asyncio.sleep(0.01)
        assert not leaving.done()
        await lasting.logs("c")
        async with asyncio.timeout(5):
            await leaving
