"""The servicers over real gRPC, and under cancellation at every await."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
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


async def waiting(gatekeeper: Any) -> str:
    """Return the id of the call that waits, once there is one."""
    async with asyncio.timeout(5):
        while not gatekeeper.waiting:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.001)
    (ident,) = gatekeeper.waiting
    return str(ident)


async def test_a_call_waits_for_its_turn(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"w"))
        gatekeeper.let_in(await waiting(gatekeeper))
        forwarded = await call.read()
        assert forwarded.request_body.response.body_mutation.body == b"rewritten"

        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        assert gatekeeper.held == {"x1"}
        await call.done_writing()
        assert await call.read() is aio.EOF
        await until_idle(processor)
    assert gatekeeper.released == ["x1"]


async def test_a_call_that_waited_in_vain_is_answered(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"w"))
        gatekeeper.turn_away(await waiting(gatekeeper))
        assert (await call.read()).immediate_response.status.code == 200
        await call.done_writing()
        await until_idle(processor)
    assert gatekeeper.released == []


def part(content: bytes, *, last: bool = False) -> Any:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=content, end_of_stream=last))


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


async def test_an_admitted_call_is_revoked(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"v"))
        assert (await call.read()).WhichOneof("response") == "request_body"
        gatekeeper.revoke("x1")
        assert (await call.read()).immediate_response.status.code == 200
        assert gatekeeper.held == {"x1"}, "until Envoy has ended it"
        await call.done_writing()
        assert await call.read() is aio.EOF
        await until_idle(processor)
    assert gatekeeper.released == ["x1"]


async def test_what_the_engine_has_answered_is_not_revoked(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"v"))
        await call.read()
        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        gatekeeper.revoke("x1")
        await call.done_writing()
        assert await call.read() is aio.EOF
        await until_idle(processor)
    assert gatekeeper.released == ["x1"]


@pytest.mark.parametrize("how", ["done_writing", "cancel"])
async def test_a_client_that_leaves_while_waiting_frees_its_place_at_once(
    gatekeeper: Any, tmp_path: Path, how: str
) -> None:
    """Envoy ends its half of the stream when the client has gone; a broken connection cancels it."""
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"w"))
        await waiting(gatekeeper)
        left = getattr(call, how)()
        if how == "done_writing":
            await left
        await until_idle(processor)

    assert (gatekeeper.waiting, gatekeeper.held) == ({}, set())
    assert gatekeeper.released == ["x1"]


async def test_a_message_while_waiting_is_replied_to_at_once(
    gatekeeper: Any, tmp_path: Path
) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"w"))
        ident = await waiting(gatekeeper)
        await call.write(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()))
        assert (await call.read()).WhichOneof("response") == "request_trailers"
        gatekeeper.let_in(ident)
        assert (await call.read()).WhichOneof("response") == "request_body"
        call.cancel()
        await until_idle(processor)
    assert gatekeeper.held == set()


async def test_a_call_that_we_fail_to_cut_goes_on(gatekeeper: Any, tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("a fault of ours")

    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"v"))
        assert (await call.read()).WhichOneof("response") == "request_body"
        gatekeeper.revocable.pop("x1")(broken)
        async with asyncio.timeout(5):  # else what Envoy says may come first
            while not gatekeeper.faults.counts[Place.CONCLUDE]:  # noqa: ASYNC110 (it is counted, no event)
                await asyncio.sleep(0)
        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        call.cancel()
        await until_idle(processor)
    assert gatekeeper.faults.counts[Place.CONCLUDE] == 1


async def test_what_envoy_answers_by_itself_is_waited_for_no_longer(
    gatekeeper: Any, tmp_path: Path
) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"w"))
        await waiting(gatekeeper)
        await call.write(response_headers())
        assert (await call.read()).WhichOneof("response") == "response_headers"
        assert (gatekeeper.waiting, gatekeeper.held) == ({}, set())
        await call.done_writing()
        await until_idle(processor)


async def test_a_fault_after_the_wait_is_answered(gatekeeper: Any, tmp_path: Path) -> None:
    async with served(gatekeeper, tmp_path) as (processor, channel):
        call = stream(channel)
        await call.write(body(b"w"))
        gatekeeper.fail(await waiting(gatekeeper))
        assert (await call.read()).immediate_response.status.code == 500
        await call.done_writing()
        await until_idle(processor)
    assert gatekeeper.held == set()


async def test_who_leaves_as_its_turn_comes_gives_the_place_back(gatekeeper: Any) -> None:
    processor = Processor(gatekeeper)
    left = asyncio.Event()

    class Leaving(ScriptedContext):
        async def read(self) -> Any:
            if self._messages:
                return await super().read()
            await left.wait()
            return aio.EOF

    context: Any = Leaving([body(b"w")], cancel_at=0)
    task = asyncio.create_task(processor._process(None, context))
    ident = await waiting(gatekeeper)
    await asyncio.sleep(0)
    gatekeeper.let_in(ident)
    left.set()
    await task

    assert gatekeeper.held == set()
    assert processor.streams == 0


@pytest.mark.parametrize("turns", range(5))
async def test_cancellation_at_any_moment_of_a_wait(gatekeeper: Any, turns: int) -> None:
    before = asyncio.all_tasks()
    processor = Processor(gatekeeper)

    class Silent(ScriptedContext):
        async def read(self) -> Any:
            if self._messages:
                return await super().read()
            return await asyncio.get_running_loop().create_future()

    context: Any = Silent([body(b"w")], cancel_at=0)
    task = asyncio.create_task(processor._process(None, context))
    for turn in range(turns):
        await asyncio.sleep(0)
        if turn == 2:
            gatekeeper.let_in("x1")
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)

    assert task.cancelled()
    assert (gatekeeper.waiting, gatekeeper.held) == ({}, set())
    assert processor.streams == 0
    assert asyncio.all_tasks() == before


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
