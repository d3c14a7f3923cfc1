"""All pools' endpoints: who joins, who leaves, and who is not disturbed by it."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from extproc.config import Endpoints, PoolConfig, Scrape
from extproc.engines.fleet import Fleet

QUICK = Scrape(interval=0.02, timeout=60.0, stale_after=0.02)


class Running:
    """Runs fleets in the background; `stop` ends the last one and gives what it raised."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, pools: dict[str, PoolConfig], news: Any, **more: Any) -> None:
        clock = asyncio.get_running_loop().time
        fleet = Fleet(pools, news, clock=clock, rng=random.Random(1), **more)
        self._task = asyncio.create_task(fleet.run())

    async def stop(self) -> BaseException | None:
        if self._task is None:
            return None
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        return outcome

    async def end(self) -> BaseException | None:
        assert self._task is not None
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        return outcome


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    yield running
    await running.stop()


@pytest.fixture
def nobody() -> int:
    """A port of 127.0.0.0/8 where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def static(*endpoints: str, aliases: tuple[str, ...] = ()) -> PoolConfig:
    return PoolConfig(endpoints=Endpoints(static=endpoints), aliases=aliases, scrape=QUICK)


async def test_every_endpoint_of_every_pool(
    serve: Any, answer: Any, page: bytes, news: Any, running: Running
) -> None:
    both = page.replace(b"tiny", b"a") + page.replace(b"tiny", b"b").replace(b"0.5", b"0.75")
    one, two, three = [await serve(answer(both)) for _ in range(3)]
    running.start({"a": static(one, two), "other": static(three, aliases=("b",))}, news)
    await news.until(lambda: len({call[:3] for call in news.of("observed")}) == 3)
    usage = {call[1:3]: call[3].kv_usage for call in news.of("observed")}
    assert usage == {("a", one): 0.5, ("a", two): 0.5, ("other", three): 0.75}
    assert isinstance(await running.stop(), asyncio.CancelledError)
    assert news.endpoints == set()


async def test_pods_that_report_themselves_join_and_are_not_scraped(
    serve: Any, answer: Any, news: Any, running: Running
) -> None:
    told, scraped = await serve(answer()), await serve(answer())
    silent = static(told).model_copy(update={"scrape": Scrape(enabled=False)})
    running.start({"told": silent, "scraped": static(scraped)}, news)

    await news.until(lambda: len(news.of("observed")) >= 3)

    assert {call[2] for call in news.of("observed")} == {scraped}
    assert news.endpoints == {told, scraped}


async def test_misbehaving_endpoints_delay_no_other(
    serve: Any, answer: Any, news: Any, running: Running
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"#\n")
            await asyncio.sleep(0.01)

    good = await serve(answer())
    bad = [
        await serve(peer)
        for peer in (hang, drip, answer(b"garbage"), answer(b"", "500 Internal Server Error"))
    ]
    running.start({"tiny": static(*bad, good)}, news)
    await news.until(lambda: len(news.of("observed")) >= 10)
    assert {call[2] for call in news.of("observed")} == {good}
    assert {call[2] for call in news.of("failed")} == set(bad[2:])


async def test_an_endpoint_that_flaps(
    serve: Any, answer: Any, page: bytes, news: Any, running: Running
) -> None:
    times = 0

    async def flap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal times
        times += 1
        await answer(page if times % 2 else b"", headers="connection: close\r\n")(reader, writer)

    running.start({"tiny": static(await serve(flap))}, news)
    await news.until(lambda: len(news.of("observed")) >= 3)
    told = [call[0] for call in news.of("observed", "failed")]
    assert told[:5] == ["observed", "failed", "observed", "failed", "observed"]


async def test_dns_is_asked_again_and_again(
    nobody: int, news: Any, naps: Any, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "extproc.engines.fleet")
    answers: list[list[str] | Exception] = [
        ["127.0.0.1", "127.0.0.2"],
        ["127.0.0.2", "127.0.0.3"],
        [],
        OSError("no resolver"),
        OSError("no resolver"),
        RuntimeError("a fault"),
        ["127.0.0.2"],
    ]
    upcoming = iter(answers)

    async def lookup(host: str, port: int) -> Iterable[str]:
        found = next(upcoming)
        if isinstance(found, Exception):
            raise found
        return found

    def at(*last: int) -> set[str]:
        return {f"127.0.0.{number}:{nobody}" for number in last}

    pool = PoolConfig(endpoints=Endpoints(dns="vllm.svc", port=nobody))
    running.start({"tiny": pool}, news, resolve=lookup, sleep=naps.sleep)
    await news.until(lambda: news.endpoints == at(1, 2))
    await naps.pass_(5.0)
    await news.until(lambda: news.endpoints == at(2, 3))
    for _ in range(4):
        await naps.pass_(5.0)
        assert news.endpoints == at(2, 3)
    await naps.pass_(5.0)
    await news.until(lambda: news.endpoints == at(2))
    assert news.of("joined").count(("joined", "tiny", f"127.0.0.2:{nobody}")) == 1
    assert news.of("undiscovered") == [
        ("undiscovered", "tiny", "vllm.svc has no address"),
        ("undiscovered", "tiny", "vllm.svc cannot be resolved: no resolver"),
        ("undiscovered", "tiny", "vllm.svc cannot be resolved: no resolver"),
        ("undiscovered", "tiny", "a fault of Tidegate's own: RuntimeError"),
    ]
    logged = [r for r in caplog.records if "looked up" in r.getMessage()]
    assert [(r.levelname, r.__dict__["problem"], bool(r.exc_info)) for r in logged] == [
        ("WARNING", "vllm.svc has no address", False),
        ("WARNING", "vllm.svc cannot be resolved: no resolver", False),
        ("WARNING", "a fault of Tidegate's own: RuntimeError", True),
        ("INFO", None, False),
    ]


async def test_a_lookup_that_hangs_delays_no_other_pool(
    serve: Any, answer: Any, news: Any, running: Running
) -> None:
    async def lookup(host: str, port: int) -> Iterable[str]:
        await asyncio.Event().wait()
        return []

    hung = PoolConfig(endpoints=Endpoints(dns="vllm.svc", port=8000))
    running.start({"hung": hung, "tiny": static(await serve(answer()))}, news, resolve=lookup)
    await news.until(lambda: len(news.of("observed")) >= 3)


async def test_a_file_that_is_replaced_spoiled_and_mended(
    nobody: int, tmp_path: Path, news: Any, naps: Any, running: Running
) -> None:
    path, new = tmp_path / "pods.yaml", tmp_path / "new"

    def write(text: str) -> None:
        new.write_text(text)
        new.replace(path)

    one, two = f"127.0.0.1:{nobody}", f"127.0.0.2:{nobody}"
    pool = PoolConfig(endpoints=Endpoints(file=path))
    running.start({"tiny": pool}, news, sleep=naps.sleep)
    await news.until(lambda: news.of("undiscovered"))
    assert news.endpoints == set()
    for text, endpoints in [
        (f"- {one}", {one}),
        (f"endpoints: [{one}, {two}]", {one, two}),
        ("endpoints: [", {one, two}),
        ("[]", {one, two}),
        (f"- {two}", {two}),
        (f"- {one}", {one}),
    ]:
        write(text)
        await naps.pass_(1.0)
        await news.until(lambda endpoints=endpoints: news.endpoints == endpoints)


async def test_nothing_is_said_of_an_endpoint_after_it_left(
    serve: Any, answer: Any, tmp_path: Path, news: Any, naps: Any, running: Running
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    hung, good = await serve(hang), await serve(answer())
    path = tmp_path / "pods.yaml"
    path.write_text(f"- {hung}\n- {good}\n")
    pool = PoolConfig(endpoints=Endpoints(file=path))
    running.start({"tiny": pool}, news, sleep=naps.sleep)
    await news.until(lambda: len(news.of("sending")) == 2)
    path.write_text(f"- {good}\n")
    await naps.pass_(1.0)
    assert [call[0] for call in news.heard if call[2] == hung] == ["joined", "sending", "left"]
    path.write_text(f"- {hung}\n- {good}\n# again\n")
    await naps.pass_(1.0)
    await news.until(lambda: len(news.of("sending")) == 3)
    assert [call[0] for call in news.heard if call[2] == hung][3:] == ["joined", "sending"]


async def test_a_listener_that_raises_on_a_reading_does_not_stop_the_scrapes(
    serve: Any, answer: Any, news: Any, running: Running
) -> None:
    def observed(*_: object) -> None:
        raise ValueError("a fault")

    news.observed = observed
    running.start({"tiny": static(await serve(answer()))}, news)
    await news.until(lambda: len(news.of("failed")) >= 3)
    assert {call[3] for call in news.of("failed")} == {"a fault of Tidegate's own: ValueError"}


async def test_a_listener_that_cannot_even_hear_of_failures_ends_the_fleet(
    nobody: int, news: Any, running: Running
) -> None:
    def failed(*_: object) -> None:
        raise ValueError("a fault")

    news.failed = failed
    running.start({"tiny": static(f"127.0.0.1:{nobody}")}, news)
    outcome = await running.end()
    assert isinstance(outcome, ExceptionGroup)
    assert outcome.subgroup(ValueError) is not None
    assert news.endpoints == set()


async def test_no_pools_is_nothing_to_do(news: Any, running: Running) -> None:
    running.start({}, news)
    assert await running.end() is None


async def test_cancellation_after_any_number_of_turns_leaves_nothing_behind(
    serve: Any, answer: Any, tmp_path: Path, nobody: int, news: Any, running: Running
) -> None:
    async def lookup(host: str, port: int) -> Iterable[str]:
        await asyncio.sleep(0)
        return ["127.0.0.1"]

    path = tmp_path / "pods.yaml"
    path.write_text(f"- 127.0.0.2:{nobody}")
    pools = {
        "tiny": static(await serve(answer())),
        "dns": PoolConfig(endpoints=Endpoints(dns="vllm.svc", port=nobody)),
        "file": PoolConfig(endpoints=Endpoints(file=path)),
    }
    for turns in range(40):
        before = asyncio.all_tasks()
        running.start(pools, news, resolve=lookup, sleep=lambda _: asyncio.sleep(0))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert isinstance(await running.stop(), asyncio.CancelledError)
        started = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {name for name in started if name.startswith(("pool ", "scrape "))}
        assert news.endpoints == set()
    assert len(news.of("joined")) == len(news.of("left")) > 0
