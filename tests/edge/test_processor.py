"""The servicers over real gRPC, and under cancellation at every await."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc_testing
import pytest
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc import aio
from grpc_health.v1 import health_pb2

from extproc.core.faults import Place
from extproc.core.outcomes import Outcome
from extproc.core.records import Ended
from extproc.edge import server
from extproc.edge.processor import Processor
from tests.edge.serving import (
    LOGS,
    PROCESS,
    ScriptedContext,
    body,
    part,
    response_headers,
    served,
    stream,
    until_idle,
)


async def test_idle_waits_for_the_last_exchange(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        first, last = stream(channel), stream(channel)
        for call in (first, last):
            await call.write(body(b"a"))
            await call.read()
        waiting = asyncio.create_task(processor.idle())
        await first.done_writing()
        assert await first.read() is aio.EOF
        assert not waiting.done()
        await last.done_writing()
        assert await last.read() is aio.EOF
        async with asyncio.timeout(5):
            await waiting


async def test_a_socket_is_not_taken_from_who_listens_there(
    gatekeeper: Any, tmp_path: Path
) -> None:
    async with served(gatekeeper, tmp_path) as (_, channel):
        with pytest.raises(server.CannotListenError, match=r"taken.* change listen\.processor"):
            server.build((), f"unix://{tmp_path / 'tidegate.sock'}", max_body=1 << 20)
        call = stream(channel)
        await call.write(body(b"a"))
        assert (await call.read()).request_body.response.body_mutation.body == b"rewritten"
        call.cancel()


async def test_a_socket_in_no_folder_cannot_be_listened_on(tmp_path: Path) -> None:
    with pytest.raises(server.CannotListenError, match="cannot listen on unix:///"):
        server.build((), f"unix://{tmp_path / 'none' / 'tidegate.sock'}", max_body=1 << 20)


async def test_a_whole_exchange_and_its_end(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"a"))
        forwarded = await call.read()
        assert forwarded.request_body.response.body_mutation.body == b"rewritten"
        assert gatekeeper.held == {"x1"}

        await call.write(response_headers())
        labelled = await call.read()
        (header,) = labelled.response_headers.response.header_mutation.set_headers
        assert (header.header.key, header.header.raw_value) == ("x-tidegate-verdict", b"admit")
        assert gatekeeper.held == {"x1"}, "capacity is held until the response has ended"

        await call.done_writing()
        assert await call.read() is aio.EOF
        await until_idle(processor)
        assert gatekeeper.held == set()


async def test_text_that_is_not_utf8_is_a_bad_request(gatekeeper: Any, tmp_path: Path) -> None:
    """Envoy sends such a header on as it is; failing the stream would let the call past the gates."""
    message = body(b"a")
    message.attributes["envoy.filters.http.ext_proc"].fields["request.path"].string_value = "/v1/?"
    raw = message.SerializeToString().replace(b"/v1/?", b"/v1/\xff")
    async with served(gatekeeper, tmp_path) as (_, channel):
        call: Any = channel.stream_stream(
            PROCESS, response_deserializer=pb.ProcessingResponse.FromString
        )()
        await call.write(raw)
        answer = (await call.read()).immediate_response

        assert answer.status.code == 400
        assert json.loads(answer.body)["error"] == {
            "message": "A request header or the path is not UTF-8.",
            "type": "invalid_request_error",
            "param": None,
            "code": "bad_request",
        }
        assert gatekeeper.judged == []
        call.cancel()


@pytest.mark.parametrize("messages", [0, 1, 2])
async def test_a_cancelled_stream_gives_everything_back(
    gatekeeper: Any, tmp_path: Path, messages: int
) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.wait_for_connection()
        for message in [body(b"a"), response_headers()][:messages]:
            await call.write(message)
            await call.read()
        call.cancel()
        await until_idle(processor)

    assert gatekeeper.held == set()
    assert len(gatekeeper.released) == min(messages, 1)


async def test_a_fault_that_nobody_meets_ends_the_stream_and_tells_the_log_nothing_private(
    gatekeeper: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failed(_place: Place, error: Exception, _path: str) -> None:
        raise error

    monkeypatch.setattr(gatekeeper, "failed", failed)
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        with caplog.at_level(logging.DEBUG):
            await call.write(body(b"f: a prompt that is private"))
            with pytest.raises(aio.AioRpcError) as raised:
                await call.read()
        assert raised.value.code() is grpc.StatusCode.INTERNAL
        await until_idle(processor)

    assert gatekeeper.held == set()
    (record,) = [each for each in caplog.records if each.message == "exchange failed"]
    assert (vars(record)["error"], vars(record)["state"]) == ("RuntimeError", "start")
    assert "in judge" in vars(record)["traceback"]
    assert not [each for each in caplog.records if "private" in str(vars(each))]


async def test_the_access_log_reports_each_end(gatekeeper: Any, tmp_path: Path) -> None:
    message = als_pb2.StreamAccessLogsMessage()
    entry = message.http_logs.log_entry.add()
    entry.response.response_code.value = 200
    own = entry.common_properties.metadata.filter_metadata["tidegate"]
    own.update({"id": "x1", "tenant": "pay", "class": "P0", "pool": "qwen"})
    ended: list[Ended] = []
    heard: list[Any] = []

    async with served(gatekeeper, tmp_path, ended, heard) as (_, channel):
        call: Any = channel.stream_unary(
            LOGS,
            request_serializer=als_pb2.StreamAccessLogsMessage.SerializeToString,
            response_deserializer=als_pb2.StreamAccessLogsResponse.FromString,
        )()
        await call.write(message)
        await call.done_writing()
        await call

    assert ended == [Ended("x1", "pay", "P0", "qwen", Outcome.COMPLETED, None, None, 0.0)]
    assert len(heard) == 1  # the flood valve looks there for its own


async def test_health_is_served_on_the_same_listener(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (_, channel):
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        reply = await check(health_pb2.HealthCheckRequest())

    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_edited_response_passes_part_by_part(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"e"))
        await call.read()
        await call.write(response_headers())
        switched = await call.read()
        assert switched.mode_override.response_body_mode == 4, "FULL_DUPLEX_STREAMED"
        for content in (b"one", b"--", b"two!"):  # nothing is said to the second
            await call.write(part(content))
        said = [(await call.read()).response_body.response.body_mutation for _ in range(2)]
        assert [each.streamed_response.body for each in said] == [b"ONE", b"TWO!"]
        assert [each.streamed_response.end_of_stream for each in said] == [False, True]
        assert await call.read() is aio.EOF, "it is over, whatever Envoy still has"
        await until_idle(processor)
    assert gatekeeper.released == ["x1"]


@pytest.mark.parametrize("cancel_at", range(1, 7))
async def test_cancellation_at_every_await_of_an_edited_response(
    gatekeeper: Any, cancel_at: int
) -> None:
    processor = Processor(gatekeeper)
    context: Any = ScriptedContext([body(b"e"), response_headers(), part(b"a!")], cancel_at)

    with pytest.raises(asyncio.CancelledError):
        await processor._process(None, context)

    assert gatekeeper.held == set()
    assert processor.streams == 0
    assert len(context.written) == (cancel_at - 1) // 2


@pytest.mark.parametrize("turns", range(5))
async def test_cancellation_at_any_moment_of_a_revocation(gatekeeper: Any, turns: int) -> None:
    before = asyncio.all_tasks()
    processor = Processor(gatekeeper)

    class Silent(ScriptedContext):
        async def read(self) -> Any:
            if self._messages:
                return await super().read()
            return await asyncio.get_running_loop().create_future()

    context: Any = Silent([body(b"v")], cancel_at=0)
    task = asyncio.create_task(processor._process(None, context))
    for turn in range(turns):
        await asyncio.sleep(0)
        if turn == 2:
            gatekeeper.revoke("x1")
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)

    assert task.cancelled()
    assert gatekeeper.held == set()
    assert processor.streams == 0
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("cancel_at", range(1, 7))
async def test_cancellation_at_every_await(gatekeeper: Any, cancel_at: int) -> None:
    processor = Processor(gatekeeper)
    context: Any = ScriptedContext([body(b"a"), response_headers()], cancel_at)

    finished = cancel_at == 6  # read, write, read, write, read (EOF): there is no sixth await
    if finished:
        await processor._process(None, context)
    else:
        with pytest.raises(asyncio.CancelledError):
            await processor._process(None, context)

    assert gatekeeper.held == set()
    assert processor.streams == 0
    assert len(context.written) == (2 if finished else (cancel_at - 1) // 2)


class BlockingServicer:
    """The processor as a blocking servicer, the only kind that grpc_testing knows."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def Process(self, requests: Iterator[Any], _context: object) -> Iterator[Any]:  # noqa: N802
        context: Any = ScriptedContext(list(requests), cancel_at=0)
        asyncio.run(self._processor._process(None, context))
        for reply in context.written:
            yield pb.ProcessingResponse.FromString(reply)


def test_the_servicer_under_grpc_testing(gatekeeper: Any) -> None:
    service = pb.DESCRIPTOR.services_by_name["ExternalProcessor"]
    testing = grpc_testing.server_from_dictionary(
        {service: BlockingServicer(Processor(gatekeeper))}, grpc_testing.strict_real_time()
    )
    rpc = testing.invoke_stream_stream(service.methods_by_name["Process"], (), None)
    rpc.send_request(body(b"a"))
    rpc.send_request(response_headers())
    rpc.requests_closed()

    replies = [rpc.take_response().WhichOneof("response") for _ in range(2)]
    _, code, _ = rpc.termination()

    assert replies == ["request_body", "response_headers"]
    assert code is grpc.StatusCode.OK
    assert gatekeeper.held == set()
