"""The load client: reading responses, and connections to servers that misbehave."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.loadgen.http_client import Answer, BadResponseError, Client, Response

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"6\r\ndata: \r\nB;ext=1\r\n\r\n\r\n[DONE]\n\r\n0\r\ntrailer: x\r\n\r\n"
)


def read(*parts: bytes) -> Response:
    response = Response()
    for part in parts:
        response.feed(part)
    return response


def test_body_of_known_length() -> None:
    response = read(PLAIN)
    assert (response.status, response.body) == (200, b"hello")
    assert response.complete
    assert response.reusable


def test_the_end_of_a_long_body_is_kept() -> None:
    body = b"".join(b"%d " % number for number in range(2000))
    response = read(b"HTTP/1.1 200 OK\r\n\r\n", body[:5000], body[5000:])
    assert (response.body, response.tail) == (body[:2048], body[-256:])


def test_incomplete_body() -> None:
    response = read(PLAIN[:-1])
    assert response.begun
    assert not response.complete


def test_head_alone_has_not_begun() -> None:
    assert not read(PLAIN[:-5]).begun


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=8).map(sorted))
def test_chunks_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *cuts, len(CHUNKED)]
    response = read(*(CHUNKED[a:b] for a, b in itertools.pairwise(edges)))
    assert response.complete
    assert response.reusable
    assert response.body == b"data: \r\n\r\n[DONE]\n"


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_without_a_body(whole: bytes) -> None:
    response = read(whole)
    assert response.begun
    assert response.complete
    assert response.body == b""


def test_until_the_connection_ends() -> None:
    response = read(b"HTTP/1.1 200 OK\r\n\r\n", b"all", b" there is")
    before = response.complete
    response.eof()
    assert (before, response.complete) == (False, True)
    assert not response.reusable
    assert response.body == b"all there is"


@pytest.mark.parametrize(
    "head", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: Close\r\n"]
)
def test_connections_that_do_not_stay(head: bytes) -> None:
    response = read(head + b"content-length: 2\r\n\r\nhi")
    assert response.complete
    assert not response.reusable


def test_only_the_start_of_a_body_is_kept() -> None:
    response = read(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b"a" * 50_000)
    response.feed(b"b" * 50_000)
    assert response.complete
    assert response.body == b"a" * 2048


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not an HTTP/1.1 status line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "a length is not a number"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "a length is negative"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            "a length is not a number",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi!", "more bytes than the response has"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "the head does not end"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 70_000,
            "a chunk has no size",
        ),
    ],
)
def test_what_is_no_response(data: bytes, why: str) -> None:
    with pytest.raises(BadResponseError, match=why):
        read(data)


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_any_bytes_give_a_response_or_the_declared_error(parts: list[bytes]) -> None:
    response = Response()
    try:
        for part in parts:
            response.feed(b"HTTP/1.1 200 OK\r\n" + part if part is parts[0] else part)
        response.eof()
    except BadResponseError:
        return
    assert response.complete


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[Client, list[int]]]:
    """A server, a client of it, and one entry for each connection that was made."""
    connections: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}/base/", clock=time.monotonic) as client:
            yield client, connections


async def ask(client: Client, body: bytes = b"{}") -> Answer:
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    client.send(client.head("/v1/models", [("x-tenant-id", "pay")]), body, answer.set_result)
    async with asyncio.timeout(5):
        return await answer


async def until_forgotten(client: Client) -> None:
    while True:
        if not client.idle:
            return
        await asyncio.sleep(0.001)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def test_request_on_the_wire() -> None:
    received: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(PLAIN)
        await reader.read()

    async with serving(handler) as (client, _):
        answer = await ask(client, b'{"model":"m"}')
    assert (answer.status, answer.body, answer.error) == (200, b"hello", None)
    assert answer.first_byte <= answer.end
    request = received[0].split(b"\r\n")
    assert request[0] == b"POST /base/v1/models HTTP/1.1"
    assert request[1].startswith(b"host: 127.0.0.1:")
    assert request[2:] == [
        b"content-type: application/json",
        b"x-tenant-id: pay",
        b"content-length: 13",
        b"",
        b'{"model":"m"}',
    ]


async def test_idle_connections_are_used_again_and_busy_ones_never_waited_for() -> None:
    release = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            if request.endswith(b"slow"):
                await release.wait()
            writer.write(PLAIN)

    async with serving(handler) as (client, connections):
        await client.connect(1)
        await ask(client)
        await ask(client)
        assert len(connections) == 1
        slow = asyncio.create_task(ask(client, b"slow"))
        await asyncio.sleep(0)
        assert (await ask(client)).status == 200
        assert len(connections) == 2
        assert not slow.done()
        release.set()
        assert (await slow).status == 200


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", "connection closed"),
        (PLAIN[:-2], "connection closed"),
        (b"220 smtp.example\r\n\r\n", "not an HTTP/1.1 status line"),
    ],
)
async def test_servers_that_answer_badly(reply: bytes, error: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(reply)

    async with serving(handler) as (client, _):
        assert (await ask(client)).error == error


async def test_a_body_that_ends_with_its_connection() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbye")

    async with serving(handler) as (client, connections):
        for _ in range(2):
            answer = await ask(client)
            assert (answer.body, answer.error) == (b"bye", None)
    assert len(connections) == 2


async def test_an_idle_connection_that_the_server_closes_is_forgotten() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(PLAIN)

    async with serving(handler) as (client, connections):
        await ask(client)
        await until_forgotten(client)
        assert (await ask(client)).error is None
    assert len(connections) == 2


async def test_unasked_bytes_cost_the_connection() -> None:
    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN)
        await asyncio.sleep(5)

    async with serving(handler) as (client, _):
        await client.connect(1)
        await until_forgotten(client)


async def test_giving_up_answers_everything() -> None:
    async def handler(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(handler) as (client, _):
        await client.connect(1)
        answers: list[Answer] = []
        head = client.head("/", [])
        client.send(head, b"", answers.append)  # on the open connection
        client.send(head, b"", answers.append)  # on one that is still being made
        client.give_up("no answer")
        assert [answer.error for answer in answers] == ["no answer", "no answer"]
        client.send(head, b"", answers.append)
    assert answers[2].error == "abandoned"


async def test_nobody_listens() -> None:
    async with serving(_never) as (client, _):
        pass
    async with client:
        assert (await ask(client)).error == "ConnectionRefusedError"
        with pytest.raises(ConnectionRefusedError):
            await client.connect(1)


async def _never(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    raise AssertionError


@pytest.mark.parametrize("url", ["ftp://a", "127.0.0.1:8080", "http://"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http:// or https:// address"):
        Client(url, clock=time.monotonic)


def test_headers_cannot_smuggle_lines() -> None:
    client = Client("https://gateway.example/", clock=time.monotonic)
    assert client.head("/", []).startswith(b"POST / HTTP/1.1\r\nhost: gateway.example\r\n")
    with pytest.raises(ValueError, match="a header holds a line end"):
        client.head("/", [("x-tenant-id", "pay\r\nx-class: P0")])
