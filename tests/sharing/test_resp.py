"""The wire format, and a connection to real servers under it."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import parse_redis_url
from extproc.sharing.link import Link
from extproc.sharing.resp import LARGEST, Connection, ServerError, connect, pack

LEAVES = (
    st.binary(max_size=20)
    | st.integers(-(2**63), 2**63 - 1)
    | st.none()
    | st.just(ServerError("OOM"))
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=10)


def wire(value: Any) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, ServerError):
        return b"-OOM too much\r\n"
    return b"*%d\r\n" % len(value) + b"".join(map(wire, value))


def holds_error(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(holds_error, value))
    return isinstance(value, ServerError)


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def made() -> tuple[Connection, Transport]:
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


@given(st.lists(VALUES, max_size=4), st.lists(st.integers(0, 200), max_size=8))
def test_answers_are_read_however_they_are_cut(values: list[Any], cuts: list[int]) -> None:
    async def check() -> None:
        connection, _ = made()
        answers = [connection.send("X") for _ in values]
        raw = b"".join(map(wire, values))
        places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
        for start, end in itertools.pairwise(places):
            connection.data_received(raw[start:end])
        for value, answer in zip(values, answers, strict=True):
            if holds_error(value):
                with pytest.raises(ServerError, match="OOM"):
                    await answer
            else:
                assert await answer == value

    asyncio.run(check())


@given(st.binary(max_size=60))
def test_whatever_a_server_says_is_an_answer_or_the_end(raw: bytes) -> None:
    async def check() -> None:
        connection, _ = made()
        answer = connection.send("X")
        connection.data_received(raw)
        connection.connection_lost(None)
        assert answer.done()
        answer.exception()

    asyncio.run(check())


def test_a_command_is_sent_as_bulk_strings() -> None:
    assert (
        pack("SET", b"\xff\r\n", "é") == b"*3\r\n$3\r\nSET\r\n$3\r\n\xff\r\n\r\n$2\r\n\xc3\xa9\r\n"
    )


async def test_who_no_longer_waits_costs_the_others_nothing() -> None:
    connection, _ = made()
    first, second = connection.send("X"), connection.send("Y")
    first.cancel()
    connection.data_received(b"+one\r\n+two\r\n")

    assert await second == b"two"


@pytest.mark.parametrize(
    "raw", [b"hello\r\n", b":x\r\n", b"+one\r\n+two\r\n", b"$99999999\r\n" + bytes(LARGEST + 1)]
)
async def test_what_nobody_can_have_asked_for_ends_the_connection(raw: bytes) -> None:
    connection, transport = made()
    connection.send("X")
    connection.data_received(raw)

    assert transport.aborted


async def test_an_array_may_be_none() -> None:
    connection, _ = made()
    answer = connection.send("X")
    connection.data_received(b"*-1\r\n")

    assert await answer is None


async def test_with_the_connection_all_answers_are_lost() -> None:
    connection, _ = made()
    first, second = connection.send("X"), connection.send("Y")
    second.cancel()
    connection.connection_lost(None)
    connection.connection_lost(None)

    for answer in (first, connection.send("Z"), Connection().send("Z")):
        with pytest.raises(ConnectionResetError):
            await answer
    await connection.lost
    Connection().close()


async def test_users_and_databases(server: Any) -> None:
    with server.client as client:
        client.acl_setuser(
            "gate", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"]
        )
    address = parse_redis_url(f"unix://gate:secret@{server.socket}")._replace(database=3)
    connection = await connect(address)
    assert await connection.send("SET", "k", "v") == b"OK"
    connection.close()
    await connection.lost
    with server.client as client:
        client.select(3)
        assert client.get("k") == b"v"
        client.acl_deluser("gate")
    with pytest.raises(ServerError, match="WRONGPASS"):
        await connect(address._replace(password="wrong"))


async def test_over_tcp_and_tls_there_must_be_somebody() -> None:
    for scheme in ("redis", "rediss"):
        with pytest.raises(OSError, match="Connect"):
            await connect(parse_redis_url(f"{scheme}://127.0.0.1:1"))


async def test_a_server_behind_tls_must_be_signed_for(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers of the wheels are built without TLS: a proxy speaks it for them."""
    authority = trustme.CA()
    certificates = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(certificates)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(4096):
            sink.write(data)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(server.socket)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        address = parse_redis_url(f"rediss://127.0.0.1:{port}")
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(address)

        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        connection = await connect(address)
        assert await connection.send("SET", "tls", "yes") == b"OK"
        assert await connection.send("GET", "tls") == b"yes"
        connection.close()
        await connection.lost


def test_the_loop_that_serves_has_transports_of_its_own(server: Any) -> None:
    async def check() -> None:
        reached = asyncio.Event()
        link = Link(server.url, random.Random(1), lambda _: reached.set())
        task = asyncio.create_task(link.run())
        await asyncio.wait_for(reached.wait(), 10)
        task.cancel()
        await asyncio.wait((task,))

    uvloop.run(check())
