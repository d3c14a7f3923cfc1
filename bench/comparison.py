"""``python -m bench.comparison``: what a call costs through Tidegate, its floors, and what could stand in its place.

Rules this module keeps:

* One run, one engine, one client, the same 2 KB call to all; contestants take turns, in changing order.
* A contestant's CPU is that of every process between client and engine, Envoy's included.
* Every call is admitted and answered by the engine. What the others do when there is no room differs too
  much to be one figure: it stands in words in `docs/benchmarks.md`.
* A contestant that cannot be installed, started or held to its answers is named with the reason.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.__main__ import allow_many_connections
from bench.measure import (
    Bench,
    Latency,
    WrongAnswerError,
    cpu_of_all,
    latency_of,
    memory_of_all,
)
from bench.peers import PEERS, NotInstalledError, Peer
from bench.report import machine
from bench.stand import (
    ADMITTED,
    Builder,
    Gateway,
    NotReadyError,
    noop,
    serve,
    until_serving,
    without_tidegate,
)
from bench.tables import measured_on, middle, paired, short, table
from extproc.sim.loadgen.load import Kind
from extproc.sim.loadgen.precise_loop import precise_loop
from extproc.stand.ports import free_port

ENVOY, NO_OP, BETTERPROTO, TIDEGATE = (
    "Envoy alone", "Envoy + no-op, upb", "Envoy + no-op, betterproto", "**Envoy + Tidegate**"
)  # fmt: skip
CALM_HEADINGS = (
    "gateway", "p50 ms", "over Envoy alone", "p99 ms", "CPU µs a call", "idle CPU ms/s", "RSS MiB"
)  # fmt: skip
BUSY_HEADINGS = (
    "gateway", "calls/s", "CPU µs a call", "of Envoy alone", "of no-op, upb", "of it, the processor"
)  # fmt: skip
_PASSED = {ADMITTED: Kind.ENGINE}


@dataclass(slots=True)
class Measured:
    """What a contestant did, round by round.

    Attributes:
        latency: at the calm rate.
        calm: CPU seconds of a call at that rate, what it does without calls included.
        rate: answers a second of a closed loop.
        busy: CPU seconds of a call in that loop.
        processor: of ``busy``, the processor's own.
        idle: CPU seconds a second without calls; the mean counts, since a tick of it is 10 ms.
        memory: MiB of all its processes, after it all.
    """

    latency: list[Latency] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured: rounds, calls a second, width of the closed loop, seconds of each."""

    rounds: int
    rate: float
    width: int
    seconds: float


async def measure(bench: Bench, gateway: Gateway, extent: Extent, to: Measured) -> None:
    """Add a round of one contestant."""
    pids = gateway.processes
    before = cpu_of_all(pids)
    await asyncio.sleep(extent.seconds)
    to.idle.append((cpu_of_all(pids) - before) / extent.seconds)
    before = cpu_of_all(pids)
    tally = await bench.load(gateway, ADMITTED, extent.rate, extent.seconds)
    to.calm.append((cpu_of_all(pids) - before) / tally.sent)
    to.latency.append(latency_of(tally, Kind.ENGINE))
    await bench.saturation(gateway, ADMITTED, extent.width, 0.5)
    own = [] if gateway.processor is None else [gateway.processor]
    before, before_own = cpu_of_all(pids), cpu_of_all(own)
    rate = await bench.saturation(gateway, ADMITTED, extent.width, extent.seconds)
    calls = rate * extent.seconds
    to.rate.append(rate)
    to.busy.append((cpu_of_all(pids) - before) / calls)
    to.processor.append((cpu_of_all(own) - before_own) / calls)
    to.memory = memory_of_all(pids)


@asynccontextmanager
async def contestants(
    directory: Path, workers: int, peers: Sequence[Peer]
) -> AsyncIterator[tuple[dict[str, Gateway], dict[str, str]]]:
    """Run all of them; beside them, who could not be started, and why."""
    async with Builder(directory, free_port(), workers) as build:
        found = {
            "no gateway": Gateway(f"http://127.0.0.1:{build.engine}", None, _PASSED),
            ENVOY: await build.gateway("alone", None, _PASSED, without_tidegate),
            NO_OP: await build.gateway("upb", noop("admit"), _PASSED),
            BETTERPROTO: await build.gateway(
                "betterproto", noop("admit", "--betterproto"), _PASSED
            ),
            TIDEGATE: await build.gateway("tidegate", serve, _PASSED),
        }
        absent = {}
        for peer in peers:
            name = f"{peer.name} {peer.version}"
            try:
                found[name] = await _started(build, peer)
            except (NotInstalledError, NotReadyError) as error:
                absent[name] = str(error)
        yield found, absent


async def _started(build: Builder, peer: Peer) -> Gateway:
    programs = await asyncio.to_thread(peer.installed)
    run = peer.run(programs, build.directory, build.engine)
    process = (await build.start(peer.name, run.command)).process
    gateway = Gateway(
        f"http://127.0.0.1:{run.port}", process.pid, _PASSED, (process.pid,), run.headers
    )
    await until_serving(build.session, peer.name, gateway)
    return gateway


def report(results: Mapping[str, Measured], absent: Mapping[str, str], extent: Extent) -> str:
    """Return both tables, with what was measured on."""
    envoy, floor = results[ENVOY], results[NO_OP]
    calm, busy = [], []
    for name, it in results.items():
        p50 = [each.p50 for each in it.latency]
        added = [
            each.p50 - alone.p50 for each, alone in zip(it.latency, envoy.latency, strict=True)
        ]
        is_gateway = any(it.calm)
        calm.append(
            [
                name,
                middle(p50, 1e3),
                f"{statistics.median(added) * 1e3:+.2f}",
                middle([each.p99 for each in it.latency], 1e3),
                middle(it.calm, 1e6) if is_gateway else "",
                short(statistics.mean(it.idle) * 1e3) if is_gateway else "",
                short(it.memory) if is_gateway else "",
            ]
        )
        busy.append(
            [
                name,
                middle(it.rate),
                middle(it.busy, 1e6) if is_gateway else "",
                paired(it.busy, envoy.busy) if is_gateway else "",
                paired(it.busy, floor.busy) if is_gateway else "",
                middle(it.processor, 1e6) if any(it.processor) else "",
            ]
        )
    rounds = "1 round" if extent.rounds == 1 else f"{extent.rounds} rounds"
    return "\n\n".join(
        [
            measured_on(machine()),
            f"At {extent.rate:g} calls/s, open loop; median of {rounds} (lowest–highest):",
            table(CALM_HEADINGS, calm),
            f"As fast as it goes, {extent.width} at once:",
            table(BUSY_HEADINGS, busy),
            *(f"Not measured: {name}: {reason}" for name, reason in absent.items()),
        ]
    )


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    rate: Annotated[float, typer.Option(min=1, help="calls a second, open loop")] = 100.0,
    width: Annotated[int, typer.Option(min=1, help="calls at once, closed loop")] = 32,
    seconds: Annotated[float, typer.Option(min=1, help="of each measurement")] = 3.0,
    envoy_workers: Annotated[int, typer.Option(min=1, help="worker threads of each Envoy")] = 2,
    peers: Annotated[bool, typer.Option(help="other products too; installs them first")] = True,
) -> None:
    """Compare Tidegate with its floors and with what could stand in its place."""
    allow_many_connections()
    extent = Extent(rounds, rate, width, seconds)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        asyncio.Runner(loop_factory=precise_loop) as runner,
        Console(stderr=True).status("starting") as status,
    ):
        run = _run(Path(directory), envoy_workers, PEERS if peers else (), extent, status.update)
        text = runner.run(run)
    typer.echo(text)


async def _run(
    directory: Path, workers: int, peers: Sequence[Peer], extent: Extent, say: Callable[[str], None]
) -> str:
    bench = Bench(time.monotonic, random.Random(1))  # noqa: S311 (when requests are sent)
    async with contestants(directory, workers, peers) as (gateways, absent):
        gc.collect()
        gc.freeze()
        for gateway in gateways.values():
            await bench.latency(gateway, ADMITTED, extent.rate, 1.0)
        results = {name: Measured() for name in gateways}
        for number in range(extent.rounds):
            for name in list(results)[:: -1 if number % 2 else 1]:
                say(f"round {number + 1}: {name}")
                try:
                    await measure(bench, gateways[name], extent, results[name])
                except WrongAnswerError as error:
                    absent[name] = str(error)
                    del results[name]
        return report(results, absent, extent)


if __name__ == "__main__":
    typer.run(main)
