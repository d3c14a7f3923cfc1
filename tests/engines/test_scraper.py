"""One endpoint, whatever it does."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import Scrape
from extproc.core.readings import Reading
from extproc.engines.scraper import (
    MAX_PAGE,
    ScrapeError,
    Scraper,
    choose,
    next_due,
    open_session,
)

READING = Reading(0.5, blocks=None, block_size=None, running=1, waiting=2, preemptions=3)
PATIENT = Scrape(interval=0.2, timeout=60.0)
HASTY = Scrape(interval=0.2, timeout=0.05)

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


def scraper(
    endpoint: str,
    session: object,
    news: Any,
    settings: Scrape = PATIENT,
    clock: Callable[[], float] = lambda: 100.0,
    rng: random.Random | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Scraper:
    return Scraper(
        "pool",
        endpoint,
        ("tiny",),
        settings,
        cast("aiohttp.ClientSession", session),
        news,
        clock=clock,
        rng=rng or random.Random(1),
        sleep=sleep,
    )


async def problem(endpoint: str, session: object, news: Any, settings: Scrape = PATIENT) -> str:
    """Scrape once; return what is reported as wrong."""
    await scraper(endpoint, session, news, settings).scrape()
    sending, (kind, pool, where, what) = news.heard
    assert sending == ("sending", "pool", endpoint)
    assert (kind, pool, where) == ("failed", "pool", endpoint)
    return cast("str", what)


async def test_a_reading_with_the_time_when_it_was_asked_for(
    serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    times = iter([10.0, 11.0])
    endpoint = await serve(answer())
    await scraper(endpoint, session, news, clock=lambda: next(times)).scrape()
    assert news.heard == [
        ("sending", "pool", endpoint),
        ("observed", "pool", endpoint, READING, 10.0),
    ]


async def test_the_books_are_noted_before_the_request_is_sent(
    serve: Any, session: aiohttp.ClientSession, news: Any, page: bytes
) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        news.heard.append(("asked",))
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + page)

    await scraper(await serve(peer), session, news).scrape()
    assert [call[0] for call in news.heard] == ["sending", "asked", "observed"]


async def test_one_connection_no_cookies_no_compression(
    session: aiohttp.ClientSession, news: Any, page: bytes
) -> None:
    requests: list[tuple[object, str, dict[str, str]]] = []

    async def metrics(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        requests.append((request.transport, request.path_qs, headers))
        return web.Response(body=page, headers={"set-cookie": "a=b; Path=/"})

    app = web.Application()
    app.router.add_get("/m", metrics)
    async with TestServer(app, host="127.0.0.1") as server:
        endpoint = f"127.0.0.1:{server.port}"
        reader = scraper(endpoint, session, news, Scrape(path="/m?x=1"))
        for _ in range(3):
            await reader.scrape()
    assert [call[0] for call in news.heard] == ["sending", "observed"] * 3
    assert {transport for transport, _, _ in requests} == {requests[0][0]}
    assert {path for _, path, _ in requests} == {"/m?x=1"}
    assert {tuple(sorted(headers.items())) for _, _, headers in requests} == {
        (
            ("accept", "text/plain"),
            ("accept-encoding", "identity"),
            ("host", endpoint),
            ("user-agent", "tidegate"),
        )
    }


async def test_a_redirect_is_not_followed(
    serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    endpoint = await serve(answer(b"", "302 Found", "location: /metrics\r\n"))
    assert await problem(endpoint, session, news) == "HTTP status 302 instead of 200"


@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "404 Not Found", "206 Partial Content"]
)
async def test_another_status_than_200(
    status: str, serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any, page: bytes
) -> None:
    endpoint = await serve(answer(page, status))
    assert await problem(endpoint, session, news) == f"HTTP status {status[:3]} instead of 200"


async def test_a_page_without_vllm_series(
    serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    endpoint = await serve(answer(bytes(range(256)) * 100))
    assert (await problem(endpoint, session, news)).startswith("there is no vllm:kv_cache_usage")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nvllm:kv_cache_us",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvllm:\r\n",
    ],
)
async def test_an_endpoint_that_hangs(
    start: bytes, serve: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        writer.write(start)
        await asyncio.Event().wait()

    endpoint = await serve(peer)
    assert await problem(endpoint, session, news, HASTY) == "no answer within 0.05 s"


async def test_an_endpoint_that_drips(
    serve: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"#\n")
            await writer.drain()
            await asyncio.sleep(0.001)

    endpoint = await serve(peer)
    assert await problem(endpoint, session, news, HASTY) == "no answer within 0.05 s"


async def test_an_endpoint_that_does_not_take_the_connection(
    session: aiohttp.ClientSession, news: Any
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        host, port = deaf.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:  # once its queue is full, the kernel lets the others wait
            filler.setblocking(False)
            filler.connect_ex((host, port))
        try:
            said = await problem(f"{host}:{port}", session, news, HASTY)
        finally:
            for filler in fillers:
                filler.close()
    assert said == "no answer within 0.05 s"


async def test_a_page_without_end(serve: Any, session: aiohttp.ClientSession, news: Any) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"# and so on\n" * 5000)
            await writer.drain()

    endpoint = await serve(peer)
    assert await problem(endpoint, session, news) == "the page has more than 2 MiB"


async def test_the_longest_page(
    serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any, page: bytes
) -> None:
    await scraper(await serve(answer(page + b"#" * (MAX_PAGE - len(page)))), session, news).scrape()
    assert news.heard[1][3] == READING


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x00\xff" * 1000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\nvllm:",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nnot gzip",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http(
    sent: bytes, serve: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    said = await problem(await serve(peer), session, news)
    assert said == "the answer is broken HTTP, or none"


async def test_a_connection_that_is_closed_without_an_answer(
    serve: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")

    said = await problem(await serve(peer), session, news)
    assert said == "ServerDisconnectedError: Server disconnected"


async def test_a_connection_that_is_reset(
    serve: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    async def peer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    said = await problem(await serve(peer), session, news)
    assert said.startswith(("ClientOSError", "ServerDisconnectedError"))


async def test_a_port_where_nobody_listens(session: aiohttp.ClientSession, news: Any) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        said = await problem(f"127.0.0.1:{bound.getsockname()[1]}", session, news)
    assert said == "cannot connect: Connection refused"


async def test_a_name_that_cannot_be_resolved(news: Any) -> None:
    key = cast("Any", None)
    error = aiohttp.ClientConnectorError(key, socket.gaierror(-2, "Name or service not known"))
    said = await problem("h:1", Broken(error), news)
    assert said == "cannot connect: Name or service not known"


@pytest.mark.parametrize("endpoint", ["h:99999", "\ud800:80"])
async def test_an_address_that_is_none(
    endpoint: str, session: aiohttp.ClientSession, news: Any
) -> None:
    assert "own" not in await problem(endpoint, session, news)


class Broken:
    """A session that raises instead of asking."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get(self, *_: object, **__: object) -> None:
        raise self.error


async def test_an_error_that_says_nothing(news: Any) -> None:
    assert await problem("h:1", Broken(ConnectionResetError()), news) == "ConnectionResetError"


async def test_a_fault_of_our_own_is_logged_with_its_trace(
    news: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fault = KeyError("a secret")
    said = await problem("h:1", Broken(fault), news)
    assert said == "a fault of Tidegate's own: KeyError"
    (record,) = caplog.records
    assert record.getMessage() == "endpoint is unreadable by a fault of ours"
    assert record.exc_info is not None
    assert record.exc_info[1] is fault


async def test_a_fault_of_our_own_is_logged_even_if_the_endpoint_was_unreadable_before(
    news: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = Broken(OSError("no"))
    reader = scraper("h:1", session, news)
    for error in (OSError("no"), KeyError("a"), KeyError("b"), OSError("no")):
        session.error = error
        await reader.scrape()
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, False]


# Whose reading it is.

OTHER = Reading(0.9, blocks=None, block_size=None, running=0, waiting=0, preemptions=0)


@pytest.mark.parametrize(
    ("readings", "models"),
    [
        ({"a": READING, "b": OTHER}, ("a",)),
        ({"a": READING, "b": OTHER}, ("x", "a")),
        ({"a": READING, "b": OTHER}, ("a", "b")),
        ({"a": READING}, ("x",)),
        ({"": READING}, ("*",)),
    ],
)
def test_the_model_of_the_pool(readings: dict[str, Reading], models: tuple[str, ...]) -> None:
    assert choose(readings, models) is READING


def test_several_models_and_none_is_the_pools() -> None:
    with pytest.raises(ScrapeError) as caught:
        choose({"a": READING, "b": OTHER}, ("x", "y"))
    assert str(caught.value) == (
        "the server has 2 models and none is called x or y: "
        "name the pool as the server does, or add an alias"
    )


async def test_several_models_and_none_is_the_pools_is_a_failure(
    serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any, page: bytes
) -> None:
    endpoint = await serve(answer(page.replace(b"tiny", b"a") + page.replace(b"tiny", b"b")))
    assert (await problem(endpoint, session, news)).startswith("the server has 2 models")


# When it is asked.


class Time:
    """A clock that the scraper's sleep advances, and each scrape by ``costs``."""

    def __init__(self, news: Any, costs: list[float]) -> None:
        self.now = 1000.0
        self.sent: list[float] = []
        self._costs = iter(costs)
        self._done = asyncio.Event()
        news.sending = self.sending

    def sending(self, pool: str, endpoint: str) -> None:
        self.sent.append(round(self.now - 1000.0, 6))
        self.now += next(self._costs)

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        if len(self.sent) == 6:
            raise asyncio.CancelledError
        self.now += seconds


@pytest.mark.parametrize(
    ("costs", "sent"),
    [
        ([0.0] * 6, [0.0, 0.15, 0.35, 0.55, 0.75, 0.95]),
        ([0.01, 0.19, 0.0, 0.1, 0.0, 0.0], [0.0, 0.15, 0.35, 0.55, 0.75, 0.95]),
        ([0.0, 0.21, 0.0, 1.0, 0.0, 0.0], [0.0, 0.15, 0.55, 0.75, 1.95, 2.15]),
        ([0.28] * 6, [0.0, 0.35, 0.75, 1.15, 1.55, 1.95]),
    ],
    ids=["quick", "uneven", "late", "always late"],
)
async def test_the_points_of_time(costs: list[float], sent: list[float], news: Any) -> None:
    time = Time(news, costs)
    rng = cast("random.Random", type("Quarter", (), {"random": lambda _: 0.25})())
    reader = scraper(
        "h:1", Broken(OSError()), news, clock=lambda: time.now, rng=rng, sleep=time.sleep
    )
    with pytest.raises(asyncio.CancelledError):
        await reader.run()
    assert time.sent == sent


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0.02, 3600.0))
def test_the_next_point_is_after_now_and_at_most_an_interval_away(
    due: float, late: float, interval: float
) -> None:
    now = due + late
    following = next_due(due, now, interval)
    assert now < following + 1e-6 <= now + interval + 2e-6
    assert math.isclose((following - due) / interval, round((following - due) / interval))


# What is logged.


async def test_only_changes_are_logged(
    news: Any, caplog: pytest.LogCaptureFixture, page: bytes
) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    reader = scraper("h:1", Broken(OSError("no")), news, clock=lambda: now)
    assert repr(reader) == "<Scraper pool h:1: new>"

    async def fetch() -> bytes:
        if not good:
            raise OSError("no")
        return page

    reader._fetch = fetch  # type: ignore[method-assign]
    # Stale after 1 s: a miss or two in between changes nothing.
    for now, good in [  # noqa: B007  (the clock and the endpoint look at them)
        (0.0, False), (0.2, False), (0.4, True), (0.6, False), (0.8, True), (1.0, False),
        (1.7, False), (1.9, False), (2.1, False), (2.3, True), (2.5, True),
    ]:  # fmt: skip
        await reader.scrape()
    told = [(r.levelname, r.getMessage(), r.__dict__.get("problem")) for r in caplog.records]
    assert told == [
        ("WARNING", "endpoint is unreadable", "OSError: no"),
        ("INFO", "endpoint is readable", None),
        ("WARNING", "endpoint is unreadable", "OSError: no"),
        ("INFO", "endpoint is readable", None),
    ]
    assert {(r.__dict__["pool"], r.__dict__["endpoint"]) for r in caplog.records} == {
        ("pool", "h:1")
    }
    assert repr(reader) == "<Scraper pool h:1: readable>"


# Cancellation.


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nvllm:"],
)
async def test_cancellation_in_mid_scrape_says_nothing_and_closes_the_connection(
    start: bytes, serve: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    closed = asyncio.Event()

    async def peer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        news.sending("asked", "")
        await reader.read()
        closed.set()

    task = asyncio.create_task(scraper(await serve(peer), session, news).run())
    await news.until(lambda: len(news.heard) == 2)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await closed.wait()
    assert news.of("failed", "observed") == []


async def test_cancellation_after_any_number_of_turns(
    serve: Any, answer: Any, session: aiohttp.ClientSession, news: Any
) -> None:
    endpoint = await serve(answer())
    for turns in range(40):
        task = asyncio.create_task(
            scraper(endpoint, session, news, sleep=lambda _: asyncio.sleep(0)).run()
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert news.of("failed") == []
