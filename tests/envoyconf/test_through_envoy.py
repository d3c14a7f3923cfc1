"""What the generated bootstrap does in a real Envoy, and the facts of Envoy that it stands on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2
from yarl import URL

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = b'{"model":"tiny"}'
LONGER = b'{"model":"tiny","max_tokens":512}'
World = Callable[..., Awaitable[Any]]


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def set_metadata(response: Any, **fields: str) -> None:
    response.dynamic_metadata.update({"tidegate": fields})


def admit(response: Any) -> None:
    set_metadata(response, verdict="admit", id="x1")


def shed(response: Any) -> None:
    response.immediate_response.status.code = 200
    response.immediate_response.body = b'{"shed":true}'
    header = response.immediate_response.headers.set_headers.add().header
    header.key, header.raw_value = "content-type", b"application/json"
    set_metadata(response, verdict="shed", id="x1")


async def test_an_exchange_is_two_messages_with_headers_as_attributes(world: World) -> None:
    envoy = await world("identity: {sources: [{api_key: {file: keys.yaml}}]}")
    status, _ = await envoy.post(CHAT, BODY, authorization="Bearer secret", cookie="not asked for")
    assert status == 200
    assert envoy.processor.kinds == ["request_body", "response_headers"]
    first = envoy.processor.requests[0]
    assert list(first.attributes) == ["envoy.filters.http.ext_proc"]
    attributes = dict(first.attributes["envoy.filters.http.ext_proc"].items())
    assert attributes.pop("request.id") == envoy.engine.seen[0].headers["x-request-id"]
    assert attributes == {
        "request.path": CHAT,
        "request.headers['authorization']": "Bearer secret",
    }
    assert (first.request_body.body, first.request_body.end_of_stream) == (BODY, True)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("rewritten", [None, b"", b"{}", LONGER])
async def test_the_engine_gets_the_exact_length(
    world: World, chunked: bool, rewritten: bytes | None
) -> None:
    envoy = await world()

    def answer(response: Any) -> None:
        if rewritten is not None:
            response.request_body.response.body_mutation.body = rewritten

    envoy.processor.on_body(answer)
    await envoy.post(CHAT, chunks(BODY[:5], BODY[5:]) if chunked else BODY)
    (seen,) = envoy.engine.seen
    assert seen.body == (BODY if rewritten is None else rewritten)
    assert seen.headers["content-length"] == str(len(seen.body))
    assert "transfer-encoding" not in seen.headers


async def test_bodies_pass_byte_exact_over_http2(world: World) -> None:
    envoy = await world()
    body = bytes(range(256)) * 8192
    async with httpx.AsyncClient(http1=False, http2=True) as client:
        response = await client.post(f"{envoy.url}{CHAT}", content=body)
    assert (response.http_version, response.status_code) == ("HTTP/2", 200)
    assert envoy.engine.seen[0].body == body


async def test_a_shed_call_never_reaches_the_engine(world: World) -> None:
    envoy = await world()
    envoy.processor.on_body(shed)
    async with envoy.client.post(f"{envoy.url}{CHAT}", data=BODY) as response:
        assert response.headers["content-type"] == "application/json"
        assert (response.status, await response.read()) == (200, b'{"shed":true}')
    envoy.processor.on_body(admit)
    await envoy.post(CHAT, LONGER)
    assert [seen.body for seen in envoy.engine.seen] == [LONGER]


async def test_our_own_reply_does_not_come_back_as_a_response(world: World) -> None:
    envoy = await world()
    envoy.processor.on_body(shed)
    await envoy.post(CHAT, BODY)
    await envoy.post(CHAT, LONGER)
    assert envoy.processor.kinds == ["request_body", "request_body"]


async def test_a_call_without_body_is_seen_first_at_its_response(world: World) -> None:
    envoy = await world()
    async with envoy.client.get(f"{envoy.url}/v1/models") as response:
        assert response.status == 200
    assert envoy.processor.kinds == ["response_headers"]
    (attributes,) = envoy.processor.requests[0].attributes.values()
    assert set(attributes.fields) == {"upstream.address", "response.code_details"}


async def test_header_mutations_in_the_reply_to_a_body_are_dropped(world: World) -> None:
    envoy = await world()

    def answer(response: Any) -> None:
        option = response.request_body.response.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = "x-added", b"1"

    envoy.processor.on_body(answer)
    await envoy.post(CHAT, BODY)
    assert "x-added" not in envoy.engine.seen[0].headers


async def test_clients_cannot_steer(world: World) -> None:
    envoy = await world(pools=2)

    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return web.Response()

    for engine in envoy.engines:
        engine.answer = slow
    status, _ = await envoy.post(
        CHAT,
        BODY,
        x_tidegate_pool="tiny-2",
        X_Tidegate_Class="P0",
        x_envoy_upstream_rq_timeout_ms="1",
        x_envoy_max_retries="9",
    )
    assert status == 200
    (seen,) = envoy.engine.seen
    ours = {name for name in seen.headers if name.startswith(("x-tidegate", "x-envoy"))}
    assert ours == {"x-envoy-external-address"}


@pytest.mark.parametrize(
    ("sent", "status", "seen"),
    [
        ("/v1/%63hat/completions", 200, CHAT),
        ("//v1//chat/completions", 200, CHAT),
        ("/v1/x/../chat/./completions?a=%2F", 200, f"{CHAT}?a=%2F"),
        ("/v1/chat%2Fcompletions", 400, None),
        ("/v1/chat%5ccompletions", 400, None),
    ],
)
async def test_a_path_has_one_spelling(
    world: World, sent: str, status: int, seen: str | None
) -> None:
    envoy = await world()
    async with envoy.client.post(URL(envoy.url + sent, encoded=True), data=BODY) as response:
        assert response.status == status
    assert [request.path for request in envoy.engine.seen] == ([seen] if seen else [])
    if seen:
        attributes = envoy.processor.requests[0].attributes["envoy.filters.http.ext_proc"]
        assert attributes["request.path"] == seen


async def test_the_pool_of_the_verdict_takes_the_call(world: World) -> None:
    envoy = await world(pools=2)
    for pool in ("tiny", "tiny-2", "no-such-pool"):
        envoy.processor.on_body(lambda response, pool=pool: set_metadata(response, pool=pool))
        await envoy.post(CHAT, pool.encode())
    bodies = [[seen.body for seen in engine.seen] for engine in envoy.engines]
    assert bodies == [[b"tiny", b"no-such-pool"], [b"tiny-2"]]


async def test_the_picked_endpoint_takes_the_call(world: World) -> None:
    def one_pool(config: Any, served: list[str]) -> Any:
        pool = config.pools["tiny"]
        endpoints = pool.endpoints.model_copy(update={"static": tuple(served)})
        picking = pool.model_copy(update={"endpoints": endpoints, "balance": "pick"})
        return config.model_copy(update={"pools": {"tiny": picking}})

    envoy = await world(pools=2, edit=one_pool)
    for address in [*envoy.addresses, *envoy.addresses]:
        choice = {"envoy.lb": {"tidegate-endpoint": address}}
        envoy.processor.on_body(lambda response, c=choice: response.dynamic_metadata.update(c))
        await envoy.post(CHAT, address.encode())
    gone = {"envoy.lb": {"tidegate-endpoint": "127.0.0.1:1"}}
    envoy.processor.on_body(lambda response: response.dynamic_metadata.update(gone))
    assert (await envoy.post(CHAT, BODY))[0] == 200
    first, second = ([seen.body for seen in engine.seen] for engine in envoy.engines)
    assert first[:2] == [envoy.addresses[0].encode()] * 2
    assert second[:2] == [envoy.addresses[1].encode()] * 2


async def test_only_admitted_exchanges_are_logged(world: World) -> None:
    envoy = await world()
    envoy.processor.on_body(shed)
    await envoy.post(CHAT, BODY)
    envoy.processor.reply = envoy.processor.unchanged
    await envoy.post(CHAT, BODY)
    envoy.processor.on_body(admit)
    await envoy.post(CHAT, LONGER)
    entry = await envoy.processor.next_log()
    assert envoy.processor.logged.empty()
    assert entry.request.request_body_bytes == len(LONGER)
    assert entry.response.response_code.value == 200
    assert entry.response.response_code_details == "via_upstream"
    metadata = entry.common_properties.metadata.filter_metadata
    assert dict(metadata["tidegate"].items()) == {"verdict": "admit", "id": "x1"}
    assert dict(metadata["tidegate.usage"].items()) == {"prompt_tokens": 7, "completion_tokens": 3}


async def test_who_leaves_before_the_verdict_leaves_no_entry(world: World) -> None:
    """The log is filtered by the metadata of a verdict that Envoy has not read."""
    envoy = await world()
    asked = asyncio.Event()

    def silent(request: Any) -> None:
        asked.set()

    envoy.processor.reply = silent
    call = asyncio.create_task(envoy.post(CHAT, BODY))
    await asyncio.wait_for(asked.wait(), 5)
    call.cancel()
    envoy.processor.on_body(admit)
    await envoy.post(CHAT, LONGER)
    entry = await envoy.processor.next_log()
    assert entry.request.request_body_bytes == len(LONGER)
    assert envoy.processor.logged.empty()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413(world: World, chunked: bool) -> None:
    envoy = await world("requests: {max_body: 64KiB}")
    body = b"x" * 70000
    status, _ = await envoy.post(CHAT, chunks(body[:40000], body[40000:]) if chunked else body)
    assert status == 413
    assert envoy.processor.kinds == ["response_headers"]
    assert envoy.engine.seen == []
    assert (await envoy.post(CHAT, body[: 64 << 10]))[0] == 200


async def test_a_reply_of_envoy_itself_can_be_replaced(world: World) -> None:
    envoy = await world()

    def reply(request: Any) -> Any:
        response = envoy.processor.unchanged(request)
        if request.WhichOneof("request") == "response_headers":
            shed(response)
        return response

    async def vanish(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    envoy.engine.answer = vanish
    envoy.processor.reply = reply
    assert await envoy.post(CHAT, BODY) == (200, b'{"shed":true}')
    headers = envoy.processor.requests[1].response_headers.headers.headers
    assert {header.key: header.raw_value for header in headers}[":status"] == b"503"


async def test_a_dead_endpoint_is_passed_over(world: World) -> None:
    def with_a_dead_one(config: Any, served: list[str]) -> Any:
        pool = config.pools["tiny"]
        endpoints = pool.endpoints.model_copy(update={"static": ("127.0.0.1:1", *served)})
        return config.model_copy(
            update={"pools": {"tiny": pool.model_copy(update={"endpoints": endpoints})}}
        )

    envoy = await world(edit=with_a_dead_one)
    assert [(await envoy.post(CHAT, BODY))[0] for _ in range(6)] == [200] * 6


async def test_what_the_processor_refused_is_tried_again(world: World) -> None:
    envoy = await world()
    envoy.processor.refusals = 1
    await envoy.post(CHAT, BODY)
    assert envoy.processor.refusals == 0
    assert envoy.processor.kinds == ["request_body", "response_headers"]


@pytest.mark.parametrize(("mode", "status"), [("open", 200), ("closed", 503)])
async def test_a_dead_processor_does_what_is_configured(
    world: World, mode: str, status: int
) -> None:
    envoy = await world(f"envoy: {{failure_mode: {mode}}}", dead_processor=True)
    assert [(await envoy.post(CHAT, BODY))[0] for _ in range(3)] == [status] * 3
    assert [seen.body for seen in envoy.engine.seen] == [BODY] * 3 * (status == 200)


async def test_a_processor_that_dies_in_mid_exchange_does_what_is_configured(
    world: World,
) -> None:
    envoy = await world()
    envoy.processor.reply = lambda request: 1 / 0
    assert (await envoy.post(CHAT, BODY))[0] == 200
    assert envoy.engine.seen[0].body == BODY


async def test_a_processor_that_is_not_serving_is_passed_over(world: World) -> None:
    envoy = await world()
    await envoy.processor.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    async with asyncio.timeout(10):
        while True:
            envoy.processor.requests.clear()
            assert (await envoy.post(CHAT, BODY))[0] == 200
            if not envoy.processor.requests:
                break
            await asyncio.sleep(0.05)
    await envoy.processor.health.set("", health_pb2.HealthCheckResponse.SERVING)
    async with asyncio.timeout(10):
        while not envoy.processor.requests:
            assert (await envoy.post(CHAT, BODY))[0] == 200
            await asyncio.sleep(0.05)


async def test_a_stream_can_be_cut_and_ends_well(world: World) -> None:
    """`end_of_stream` in a full-duplex reply goes beyond Envoy's documented contract."""
    envoy = await world()
    left = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(
                    b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
                )
                await asyncio.sleep(0.01)
        finally:
            left.set()

    def cut(request: Any) -> Any:
        response = envoy.processor.unchanged(request)
        kind = request.WhichOneof("request")
        if kind == "request_body":
            admit(response)
        elif kind == "response_headers":
            mode = response.mode_override
            mode.request_body_mode = mode.BUFFERED
            mode.response_header_mode = mode.SEND
            mode.response_body_mode = mode.FULL_DUPLEX_STREAMED
        elif kind == "response_body" and not left.is_set():
            streamed = response.response_body.response.body_mutation.streamed_response
            last = len(envoy.processor.requests) > 4
            streamed.body = b"data: [DONE]\n\n" if last else request.response_body.body
            streamed.end_of_stream = last
        return response

    envoy.engine.answer = endless
    envoy.processor.reply = cut
    status, body = await envoy.post(CHAT, BODY)
    assert status == 200
    assert body.startswith(b'data: {"usage"')
    assert body.endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(left.wait(), 5)
    metadata = (await envoy.processor.next_log()).common_properties.metadata.filter_metadata
    assert dict(metadata["tidegate.usage"].items()) == {"prompt_tokens": 7, "completion_tokens": 1}
