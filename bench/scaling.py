"""``python -m bench.scaling streams|endpoints|tenants|queue|workers``: what grows with what, a table each.

Rules this module keeps:

* The rows of a table are of one run; what has grown is told beside the run's first row.
* CPU is Tidegate's own process, at a fixed rate of admitted calls of 2 KB, its idle work included unless
  it is told apart. A tick of it is 10 ms, so it is summed over all rounds.
* Memory is resident (RSS), and a share of it the difference between two rows.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from bench import workers as worker_rows
from bench.__main__ import allow_many_connections
from bench.measure import (
    BODY_BYTES,
    PATIENCE,
    Bench,
    WrongAnswerError,
    chat_body,
    cpu_seconds,
    latency_of,
)
from bench.report import machine
from bench.stand import ADMITTED, SHED, START_SECONDS, TENANT_HEADER, Builder, Gateway, serve
from bench.tables import measured_on, short, table
from extproc.sim.loadgen.http_client import Answer, Client
from extproc.sim.loadgen.load import Kind, Load, Tally, Traffic, poisson
from extproc.sim.loadgen.precise_loop import precise_loop
from extproc.stand.ports import free_port, free_ports, is_free

RATE = 200.0
"""Calls a second."""
STREAMS = (0, 1, 16, 64, 256, 1024, 4096)
ENDPOINTS = ((1, 0.2), (16, 0.2), (64, 0.2), (256, 0.2), (256, 1.0))
"""How many, and the seconds between two scrapes of each."""
FULL = 0.7
"""Share of a core from which on scrapes leave too little of it for calls."""
TENANTS = (1, 1_000, 10_000, 100_000)
CALLING = 2_000
"""Of the tenants, how many call."""
QUEUED, QUEUED_BYTES = 1_000, 32 << 10
_ROOMY = ("--used", "0.1", "--blocks", "40000000")
_PATIENT: dict[str, dict[str, Any]] = {
    "classes": {
        "P0": {"strict": True, "free_watermark": {"close": 0.03, "open": 0.05}, "max_wait": 3000.0},
        "P2": {"free_watermark": {"close": 0.15, "open": 0.20}},
    },
    "envoy": {"message_timeout": 3600.0},
}
"""The first class waits, for long prompts too, however long a queue that does not move may promise."""
_PASSED = {ADMITTED: Kind.ENGINE}
_KIB = 1 / 1024

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None)
Rounds = Annotated[int, typer.Option(min=1)]
Seconds = Annotated[float, typer.Option(min=1, help="of each measurement")]


class HeldCallEndedError(RuntimeError):
    """A call that was to stay in flight has ended."""


@app.command()
def streams(rounds: Rounds = 2, seconds: Seconds = 4.0) -> None:
    """Calls that are in flight while others come."""
    _print(lambda directory: _streams(directory, rounds, seconds))


@app.command()
def endpoints(rounds: Rounds = 2, seconds: Seconds = 4.0) -> None:
    """Endpoints of a pool, each scraped by itself."""
    _print(lambda directory: _endpoints(directory, rounds, seconds))


@app.command()
def tenants(rounds: Rounds = 2, seconds: Seconds = 4.0) -> None:
    """Tenants of the configuration, each with a plan."""
    _print(lambda directory: _tenants(directory, rounds, seconds))


@app.command()
def queue() -> None:
    """Calls that wait, with their bodies."""
    _print(_queue)


@app.command()
def workers(
    rounds: Rounds = 2,
    seconds: Seconds = 4.0,
    share: Annotated[float, typer.Option(min=0.05, max=1, help="of a core, for each")] = 0.15,
) -> None:
    """Workers that refuse calls as fast as they go, each held to a share of a core (root, cgroups)."""
    _print(lambda directory: worker_rows.measure(directory, rounds, seconds, share))


def _print(measure: Callable[[Path], Awaitable[str]]) -> None:
    allow_many_connections()
    gc.collect()
    gc.freeze()

    async def text(directory: Path) -> str:
        return await measure(directory)

    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        asyncio.Runner(loop_factory=precise_loop) as runner,
    ):
        found = runner.run(text(Path(directory)))
    typer.echo(f"{measured_on(machine())}\n\n{found}")


def _bench() -> Bench:
    return Bench(time.monotonic, random.Random(1))  # noqa: S311 (when requests are sent)


async def _streams(directory: Path, rounds: int, seconds: float) -> str:
    bench, counts = _bench(), STREAMS
    cpu: dict[int, list[float]] = {count: [] for count in counts}
    p50: dict[int, list[float]] = {count: [] for count in counts}
    memory: dict[int, float] = {}
    options = (*_ROOMY, "--pace", "0.2")
    async with Builder(directory, free_port(), 2, options) as build:
        gateway = await build.gateway("tidegate", serve, _PASSED)
        process = _processor(gateway)
        await bench.latency(gateway, ADMITTED, RATE, seconds)
        for number in range(rounds):
            for count in counts:
                async with _held(gateway, count):
                    call, latency = await _cost(bench, gateway, seconds)
                    cpu[count].append(call)
                    p50[count].append(latency)
                    if number == 0:
                        memory[count] = _rss(process)
    first = statistics.mean(cpu[counts[0]])
    rows = [
        [
            f"{count:,}",
            short(statistics.mean(cpu[count]) * 1e6),
            f"{statistics.mean(cpu[count]) / first:.2f} ×",
            short(statistics.median(p50[count]) * 1e3),
            short(memory[count] / 1024),
            short((memory[count] - memory[0]) / count) if count >= 1024 else "",
        ]
        for count in counts
    ]
    headings = ("streams in flight", "CPU µs a call", "of none", "p50 ms", "RSS MiB", "KiB each")
    return table(headings, rows)


async def _cost(
    bench: Bench, gateway: Gateway, seconds: float, idle: float = 0.0
) -> tuple[float, float]:
    """Return the processor's CPU seconds of a call, and the p50 of answers.

    ``idle`` are the CPU seconds that it takes each second anyway.
    """
    process = _processor(gateway)
    before, began = cpu_seconds(process), time.monotonic()
    tally = await bench.load(gateway, ADMITTED, RATE, seconds)
    spent = cpu_seconds(process) - before - idle * (time.monotonic() - began)
    return spent / tally.sent, latency_of(tally, Kind.ENGINE).p50


@asynccontextmanager
async def _held(gateway: Gateway, count: int) -> AsyncIterator[None]:
    """Hold streams in flight, whose tokens come five seconds apart."""
    ended: list[Answer] = []
    body = chat_body(BODY_BYTES).replace(b'"max_tokens"', b'"stream": true, "max_tokens"')
    async with Client(gateway.url, clock=time.monotonic) as client:
        head = client.head("/v1/chat/completions", ((TENANT_HEADER, ADMITTED),))
        await client.connect(count)
        for _ in range(count):
            client.send(head, body, ended.append)
            await asyncio.sleep(0.002)
        await asyncio.sleep(1.0)
        _refuse_ended(ended)
        yield
        _refuse_ended(ended)
    await asyncio.sleep(1.0)


def _refuse_ended(ended: Sequence[Answer]) -> None:
    if ended:
        kinds = Counter(each.error or str(each.status) for each in ended)
        raise HeldCallEndedError(f"{len(ended)} held calls ended: {dict(kinds)}")


async def _endpoints(directory: Path, rounds: int, seconds: float) -> str:
    bench, rows, memory, idle_of_one = _bench(), [], {}, 0.0
    ports = free_ports(max(count for count, _ in ENDPOINTS) + 1)
    async with Builder(directory, ports[0], 2) as build:
        for position, (count, interval) in enumerate(ENDPOINTS):
            used = ports[1 : 1 + count]
            async with _engines(build, f"engines{position}", used):
                pool = {
                    "endpoints": {"static": [f"127.0.0.1:{port}" for port in used]},
                    "max_concurrency": 1_000_000,
                    "scheduling_policy": "priority",
                    "scrape": {"interval": interval, "stale_after": 4 * interval},
                }
                more = {"pools": {"*": pool}}
                async with Builder(directory, free_port(), 2) as inner:
                    gateway = await inner.gateway(f"t{position}", serve, _PASSED, more=more)
                    process = _processor(gateway)
                    idle, busy, p50 = 0.0, 0.0, []
                    for _ in range(rounds):
                        alone = await bench.idle_cpu(gateway, seconds)
                        idle += alone
                        try:
                            call, latency = await _cost(bench, gateway, seconds, alone)
                        except WrongAnswerError:
                            call = latency = math.nan
                        if alone > FULL:  # then calls are paid with scrapes that are left out
                            call = latency = math.nan
                        busy += call
                        p50.append(latency)
                    memory[count, interval] = _rss(process)
            idle_of_one = idle if count == 1 else idle_of_one
            grown = memory[count, interval] - memory[ENDPOINTS[0]]
            rows.append(
                [
                    f"{count}, every {interval:g} s",
                    short(idle / rounds * 1e3),
                    short((idle - idle_of_one) / rounds / (count - 1) * interval * 1e6)
                    if count > 1
                    else "",
                    _or_full(busy / rounds * 1e6),
                    _or_full(statistics.median(p50) * 1e3),
                    short(memory[count, interval] / 1024),
                    short(grown / (count - 1)) if count > 16 else "",
                ]
            )
    headings = (
        "endpoints, scraped", "idle CPU ms/s", "CPU µs a scrape more", "CPU µs a call beside it", "p50 ms",
        "RSS MiB", "KiB each",
    )  # fmt: skip
    return table(headings, rows)


def _or_full(number: float) -> str:
    return "full" if math.isnan(number) else short(number)


@asynccontextmanager
async def _engines(build: Builder, name: str, ports: Sequence[int]) -> AsyncIterator[None]:
    """Run engines; inside the block all listen, so that nobody else chooses their ports."""
    command = [sys.executable, "-m", "bench.upstream", *map(str, ports)]
    started = await build.start(name, command)
    try:
        async with asyncio.timeout(START_SECONDS):
            while is_free(ports[-1]):  # noqa: ASYNC110 (another process opens them, in order)
                await asyncio.sleep(0.05)
        yield
    finally:
        await started.stop()


async def _tenants(directory: Path, rounds: int, seconds: float) -> str:
    bench, rows, first, base = _bench(), [], 0.0, 0.0
    plan = {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000}
    for count in TENANTS:
        names = [f"tenant-{number}" for number in range(count)]
        more: dict[str, dict[str, Any]] = {
            "plans": {"big": plan},
            "tenants": {name: {"class": "P0", "plan": "big"} for name in names},
        }
        async with Builder(directory, free_port(), 2) as build:
            gateway = await build.gateway(f"t{count}", serve, _PASSED, more=more)
            process = _processor(gateway)
            start, memory = time.time() - process.create_time(), _rss(process)
            await bench.latency(gateway, ADMITTED, RATE, 2.0)
            spent, tallies = cpu_seconds(process), list[Tally]()
            for _ in range(rounds):
                tallies += await _called_by(gateway, names[:CALLING], seconds)
            cpu = (cpu_seconds(process) - spent) / sum(each.sent for each in tallies)
        first, base = first or cpu, base or memory
        rows.append(
            [
                f"{count:,}",
                short(cpu * 1e6),
                f"{cpu / first:.2f} ×",
                short(memory / 1024),
                short((memory - base) / count) if count > 1 else "",
                short(start),
            ]
        )
    headings = ("tenants", "CPU µs a call", "of one", "RSS MiB", "KiB each", "seconds to ready")
    return table(headings, rows)


async def _called_by(gateway: Gateway, names: Sequence[str], seconds: float) -> list[Tally]:
    """Let these tenants call, at random; return what came of it."""
    rng, body = random.Random(1), chat_body(BODY_BYTES)  # noqa: S311 (when requests are sent)
    async with Client(gateway.url, clock=time.monotonic) as client:
        await client.connect(32)
        mix = [Traffic(name, lambda _: body, ((TENANT_HEADER, name),)) for name in names]
        load = Load(client, mix, rng)
        await load.run(poisson(RATE, seconds, rng), patience=PATIENCE)
    for each in load.tallies.values():
        if each.answers[Kind.ENGINE] != each.sent:
            raise WrongAnswerError(gateway, each, Kind.ENGINE)
    return list(load.tallies.values())


async def _queue(directory: Path) -> str:
    rows = []
    async with Builder(directory, free_port(), 2, ("--used", "1.0")) as build:
        gateway = await build.gateway("tidegate", serve, {SHED: Kind.FALLBACK}, more=_PATIENT)
        process, ended = _processor(gateway), list[Answer]()
        await _bench().latency(gateway, SHED, RATE, 2.0)
        before, body = _rss(process), chat_body(QUEUED_BYTES)
        async with Client(gateway.url, clock=time.monotonic) as client:
            head = client.head("/v1/chat/completions", ((TENANT_HEADER, ADMITTED),))
            await client.connect(QUEUED)
            for _ in range(QUEUED):
                client.send(head, body, ended.append)
            await asyncio.sleep(4.0)
            _refuse_ended(ended)
            after = _rss(process)
        rows = [
            ["0", short(before / 1024), ""],
            [f"{QUEUED:,}", short(after / 1024), short((after - before) / QUEUED)],
        ]
    return table(("calls of 32 KiB that wait", "RSS MiB", "KiB each"), rows)


def _processor(gateway: Gateway) -> psutil.Process:
    return psutil.Process(gateway.processor)


def _rss(process: psutil.Process) -> float:
    """Return the resident KiB of a process."""
    return float(process.memory_info().rss) * _KIB


if __name__ == "__main__":
    app()
