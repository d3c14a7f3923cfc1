"""Runtime discovery: an Envoy has the layer at once, again and again, and never one that it refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from envoy_data_plane.envoy.service.discovery.v3 import (
    DiscoveryRequest,
    DiscoveryResponse,
    Resource,
)
from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.rpc import Status
from hypothesis import given
from hypothesis import strategies as st

from extproc.edge.runtime_discovery import METHOD, SERVICE, TTL, Conversation, RuntimeDiscovery

KEY = "tidegate.shed.P2.kv_watermark.m"


def layer_of(response: DiscoveryResponse) -> dict[str, Any]:
    """Return the layer of a response, by an independent codec."""
    (packed,) = response.resources
    resource = packed.unpack()
    assert isinstance(resource, Resource)
    assert (resource.name, resource.ttl) == ("tidegate", timedelta(seconds=TTL))
    assert resource.resource is not None
    runtime = resource.resource.unpack()
    assert isinstance(runtime, Runtime)
    assert runtime.name == "tidegate"
    assert runtime.layer is not None
    return runtime.layer.to_dict()


@asynccontextmanager
async def listening(discovery: RuntimeDiscovery) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((discovery.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


class Listener:
    """An Envoy that asks for its runtime layer."""

    def __init__(self, channel: grpc.aio.Channel, *names: str) -> None:
        self._call = channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            request_serializer=bytes,
            response_deserializer=DiscoveryResponse.parse,
        )()
        self._names = list(names)

    async def says(self, nonce: str = "", problem: Status | None = None) -> None:
        await self._call.write(
            DiscoveryRequest(resource_names=self._names, response_nonce=nonce, error_detail=problem)
        )

    async def hears(self) -> DiscoveryResponse:
        response = await asyncio.wait_for(self._call.read(), 5)
        assert isinstance(response, DiscoveryResponse), response
        return response

    async def leaves(self) -> None:
        await self._call.done_writing()

    async def ended(self) -> bool:
        return await asyncio.wait_for(self._call.read(), 5) is grpc.aio.EOF


async def test_an_envoy_has_the_layer_at_once_and_every_change() -> None:
    discovery = RuntimeDiscovery(heartbeat=60)
    async with listening(discovery) as channel:
        discovery.publish({KEY: 0.5, "tidegate.sampled": 0.25})
        envoy = Listener(channel, "tidegate")
        await envoy.says()
        first = await envoy.hears()
        assert layer_of(first) == {
            KEY: {"numerator": 500_000, "denominator": "MILLION"},
            "tidegate.sampled": 250_000,
        }
        assert discovery.streams == 1

        await envoy.says(first.nonce)
        discovery.publish({})
        second = await envoy.hears()
        assert layer_of(second) == {}
        assert second.version_info != first.version_info

        await envoy.leaves()
        assert await envoy.ended()
        assert discovery.streams == 0


async def test_it_is_said_again_and_again() -> None:
    discovery = RuntimeDiscovery(heartbeat=0.01)
    async with listening(discovery) as channel:
        discovery.publish({KEY: 1.0})
        envoy = Listener(channel, "tidegate")
        await envoy.says()
        said = [await envoy.hears() for _ in range(3)]
        assert len({each.version_info for each in said}) == 3
        assert len({str(layer_of(each)) for each in said}) == 1


async def test_the_same_layer_is_no_change() -> None:
    discovery = RuntimeDiscovery(heartbeat=60)
    async with listening(discovery) as channel:
        envoy = Listener(channel, "tidegate")
        await envoy.says()
        await envoy.hears()
        discovery.publish({})
        discovery.publish({KEY: 1.0})
        assert (await envoy.hears()).version_info == "1.2"


async def test_what_is_refused_is_not_said_again_before_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    discovery = RuntimeDiscovery(heartbeat=0.01)
    async with listening(discovery) as channel:
        discovery.publish({KEY: 1.0})
        envoy = Listener(channel, "tidegate")
        await envoy.says()
        response = await envoy.hears()
        await envoy.says(response.nonce)  # it took it, and then thought better of it
        await envoy.says(response.nonce, Status(code=3, message="what a caller may have said"))
        await asyncio.sleep(0.05)  # some heartbeats, most of them without a word
        discovery.publish({KEY: 0.5})
        while layer_of(response)[KEY] != {"numerator": 500_000, "denominator": "MILLION"}:
            response = await envoy.hears()
        await envoy.leaves()
        while not await envoy.ended():
            pass  # what it was still sent
    (record,) = caplog.records
    assert record.getMessage() == "Envoy refuses its runtime layer"
    assert record.code == 3  # type: ignore[attr-defined]
    assert "caller" not in caplog.text


async def test_an_envoy_that_comes_back_has_it_again() -> None:
    discovery = RuntimeDiscovery(heartbeat=60)
    async with listening(discovery) as channel:
        discovery.publish({KEY: 1.0})
        for _ in range(3):
            envoy = Listener(channel, "tidegate")
            await envoy.says()
            assert layer_of(await envoy.hears())
            await envoy.leaves()
            assert await envoy.ended()
    assert discovery.streams == 0


async def test_who_asks_for_something_else_gets_nothing() -> None:
    discovery = RuntimeDiscovery()
    async with listening(discovery) as channel:
        stranger = Listener(channel, "another")
        await stranger.says()
        assert await stranger.ended()
        silent = Listener(channel)
        await silent.leaves()
        assert await silent.ended()
    assert discovery.streams == 0


SAID = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3)),
        st.tuples(st.just("ack"), st.integers(0, 5)),
        st.tuples(st.just("nack"), st.integers(0, 5)),
        st.tuples(st.just("beat"), st.just(0)),
    ),
    max_size=30,
)


@given(SAID)
def test_whatever_is_said_only_what_was_refused_is_held_back(said: list[tuple[str, int]]) -> None:
    from envoy.service.discovery.v3 import discovery_pb2

    conversation, version, refused = Conversation(), 0, -1
    nonces: list[tuple[str, int]] = []
    versions: set[str] = set()
    for kind, number in said:
        if kind == "publish":
            version += number
        elif kind == "beat" or not nonces:
            answer = conversation.answer(version, {KEY: version / 100})
            assert (answer is None) == (version == refused)
            if answer is not None:
                response = DiscoveryResponse.parse(answer)
                assert response.version_info not in versions
                versions.add(response.version_info)
                nonces.append((response.nonce, version))
        else:
            nonce, about = nonces[-1 - number] if number < len(nonces) else ("unknown", -1)
            request = discovery_pb2.DiscoveryRequest(response_nonce=nonce)
            if kind == "nack":
                request.error_detail.code = 13
            heard = conversation.heard(request)
            news = kind == "nack" and about > refused
            assert heard == (13 if news else None)
            refused = about if news else refused
