"""Bodies of every size and framing: byte-exact where nothing changes, exact lengths always."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from extproc.sim.engine_config import EngineConfig, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

KIB, MIB = 1 << 10, 1 << 20
LARGEST = 16 * MIB
EDGES = (64 * KIB, 128 * KIB, MIB)
SIZES = [KIB, *(size + off for size in EDGES for off in (-1, 0, 1)), 4 * MIB, LARGEST]
# No priority to inject, and a limit of 16 MiB.
CONFIG = f"""
pools: {{"*": {{scheduling_policy: fcfs, scrape: {{interval: 50ms, stale_after: 500ms}}}}}}
requests: {{max_body: {LARGEST}, max_call: {LARGEST}}}
"""
CHAT = "/v1/chat/completions"
TINY = b'{"a":"bc"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    fast = EngineConfig(cost=StepCost(0.001, 0.0, 0.0))
    async with opened(CONFIG, engines=1, engine=fast) as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="module", params=["http1", "http2"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    """A client that speaks one version only; HTTP/2 with prior knowledge."""
    second = request.param == "http2"
    async with httpx.AsyncClient(http1=not second, http2=second, timeout=60) as client:
        yield client


def chat_of(size: int) -> bytes:
    """Return a chat call of exactly this many bytes that no limit has to change."""
    head = b'{"model": "qwen", "max_tokens":  2, "messages": [{"role": "user", "content": "'
    tail = '\\u00e9 é 中"}]} '.encode()
    return head + b"x" * (size - len(head) - len(tail)) + tail


def in_parts(body: bytes) -> Iterator[bytes]:
    """Cut a body unevenly, so that no boundary falls together with one of Envoy's."""
    start, size = 0, 1
    while start < len(body):
        yield body[start : start + size]
        start, size = start + size, min(size * 3 + 1, 61_007)


async def send(
    stand: Any, client: httpx.AsyncClient, body: bytes, *, chunked: bool, path: str = CHAT,
    **headers: str,
) -> httpx.Response:  # fmt: skip
    async def parts() -> AsyncIterator[bytes]:
        for part in in_parts(body):
            yield part

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post(
        stand.url + path,
        content=parts() if chunked else body,
        headers={"content-type": "application/json", "x-tenant-id": "service", **named},
    )


def assert_whole(received: Any, body: bytes) -> None:
    assert (received.length, received.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert received.headers["content-length"] == str(len(body))
    assert "transfer-encoding" not in received.headers


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_bodies_reach_the_engine_byte_exact(stand: Any, client: Any, chunked: bool) -> None:
    bodies = [chat_of(size) for size in SIZES]
    assert [len(body) for body in bodies] == SIZES

    for body in bodies:
        reply = await send(stand, client, body, chunked=chunked)
        assert reply.headers["x-tidegate-verdict"] == "admit"

    for received, body in zip(await stand.received(), bodies, strict=True):
        assert_whole(received, body)


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_ten_bytes_reach_the_engine_byte_exact(
    stand: Any, client: Any, chunked: bool
) -> None:
    reply = await send(stand, client, TINY, chunked=chunked, path="/v1/embeddings")

    assert reply.headers["x-tidegate-verdict"] == "admit"
    (received,) = await stand.received()
    assert_whole(received, TINY)


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("size", [200, 64 * KIB, 128 * KIB + 1, MIB])
async def test_a_rewritten_body_has_its_exact_length(
    stand: Any, client: Any, size: int, chunked: bool
) -> None:
    body = chat_of(size).replace(b'"max_tokens":  2', b'"max_tokens":9e9')

    await send(stand, client, body, chunked=chunked)

    (received,) = await stand.received()
    assert received.length != len(body)
    assert received.headers["content-length"] == str(received.length)
    assert "transfer-encoding" not in received.headers


async def test_a_rewritten_body_says_the_same(stand: Any, client: Any) -> None:
    body = {"model": "qwen", "max_tokens": 9999, "messages": [], "x": ["é", "中", 1.50, None]}

    await send(stand, client, json.dumps(body).encode(), chunked=True)

    (received,) = await stand.received()
    assert json.loads(received.body) == {**body, "max_tokens": 2048}


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_a_gzip_body_is_clamped_too(stand: Any, client: Any, chunked: bool) -> None:
    body = {"model": "qwen", "max_tokens": 9999, "messages": [{"role": "user", "content": "hi"}]}
    packed = gzip.compress(json.dumps(body).encode())

    reply = await send(
        stand, client, packed, chunked=chunked, content_encoding="gzip", x_tenant_id="pay"
    )

    assert reply.status_code == 200
    (received,) = await stand.received()
    assert json.loads(gzip.decompress(received.body)) == {**body, "max_tokens": 512}
    assert received.headers["content-encoding"] == "gzip"
    assert received.headers["content-length"] == str(received.length)


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_a_body_over_the_limit_is_envoys_413(stand: Any, client: Any, chunked: bool) -> None:
    """Envoy refuses it while it arrives; the processor never sees the body."""
    reply = await send(stand, client, chat_of(LARGEST + 1), chunked=chunked)

    assert (reply.status_code, reply.text) == (413, "Payload Too Large")
    assert "x-tidegate-verdict" not in reply.headers
    assert await stand.received() == []
    await stand.settled()
    assert stand.grown(await stand.metrics(), "decisions_total") == 0
    assert (await send(stand, client, chat_of(KIB), chunked=chunked)).status_code == 200


async def test_a_call_without_a_body_passes(stand: Any, client: Any) -> None:
    reply = await client.get(stand.url + "/v1/models")

    assert [model["id"] for model in reply.json()["data"]] == ["qwen"]
    assert "x-tidegate-verdict" not in reply.headers


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("path", ["/v1/files", "/v1/chat/completions/", "/v1/Chat/Completions"])
async def test_what_is_no_inference_call_passes_untouched(
    stand: Any, client: Any, chunked: bool, path: str
) -> None:
    await stand.show_usage(0.99)
    body = b'\x00not JSON\xff {"max_tokens": 999999}'

    reply = await send(stand, client, body, chunked=chunked, path=path)

    assert reply.status_code == 404
    assert "x-tidegate-verdict" not in reply.headers
    (received,) = await stand.received()
    assert_whole(received, body)


@pytest.mark.parametrize(
    "path",
    [
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/x/../v1/chat/completions",
        "/v1/%63hat/completions",
        "/v1/chat/completions?a=/v1/files",
    ],
)
async def test_another_spelling_of_a_path_is_no_way_around(stand: Any, path: str) -> None:
    """Sent by hand, because clients tidy paths up themselves."""
    await stand.show_usage(0.99)
    body = chat_of(KIB)
    reader, writer = await asyncio.open_connection(*stand.plan.envoy.split(":"))
    head = f"POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()

    assert b"x-tidegate-verdict: shed" in answer
    assert await stand.received() == []


async def test_a_name_that_is_no_text_leaves_nothing_in_flight(stand: Any) -> None:
    reply = await stand.post(b'{"priority": 1, "\xff": 1, "messages": []}', x_tenant_id="marketing")

    assert reply.status_code == 400
    assert reply.headers["x-tidegate-verdict"] == "admit", "the engine has refused it"
    assert await stand.envoy("http.tidegate.ext_proc.tidegate.failure_mode_allowed") == 0
    await stand.settled()
