"""The servicer while a call waits, or is cut: on a real server, and cancelled at any moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc import aio

from extproc.core.faults import Place
from extproc.edge.processor import Processor
from tests.edge.serving import ScriptedContext, body, response_headers, served, stream, until_idle


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
