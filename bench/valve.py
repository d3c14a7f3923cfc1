"""``python -m bench.valve``: what a flood of a closed class does to payments, with the valve and without.

Rules this module keeps:

* Payments (50/s) and the flood are open loop, 2 KB bodies, from two processes: neither waits for the other.
* With and without valve take turns, in changing order; every measurement has a stand of its own, because
  without the valve Envoy itself may crash (1.40 does): that is said, and is no error of the bench.
* Payments are timed from the flood's first second on, so the time before the valve shuts counts as well.
* What the load generator costs is said: it shares the machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from bench.measure import Bench, Latency, cpu_seconds
from bench.report import machine
from bench.stand import ADMITTED, SHED, Flooded, Gateway, NotReadyError, flooded
from extproc.sim.loadgen.load import Kind
from extproc.sim.loadgen.precise_loop import precise_loop

PAYMENTS = 50.0
"""A second."""
FLOODS = (0.0, 2500.0, 5000.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement.

    Attributes:
        payments: how long those took that an engine answered.
        failed: share of the others, 0..1.
        crashed: Envoy has.
        flood: what came of the flood; see `bench.flood`. Empty where there was none.
        envoy, tidegate: CPU seconds a second.
    """

    payments: Latency
    failed: float
    crashed: bool
    flood: dict[str, Any]
    envoy: float
    tidegate: float


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=2, help="of each measurement")] = 15.0,
    envoy_workers: Annotated[int, typer.Option(min=1, help="worker threads of each Envoy")] = 2,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the results here", dir_okay=False)
    ] = None,
) -> None:
    """Measure payments beside a flood of a closed class."""
    console = Console(highlight=False, width=132)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        asyncio.Runner(loop_factory=precise_loop) as runner,
        console.status("starting") as status,
    ):
        results = runner.run(_run(Path(directory), rounds, seconds, envoy_workers, status.update))
    console.print(table(results))
    if json_file is not None:
        document = {"machine": machine(), "rounds": _document(results)}
        json_file.write_text(json.dumps(document, indent=2), encoding="utf-8")


Results = dict[tuple[str, float], list[Round]]


async def _run(directory: Path, rounds: int, seconds: float, workers: int, say: Any) -> Results:
    bench = Bench(time.monotonic, random.Random(1))  # noqa: S311 (when requests are sent)
    results: Results = {}
    gc.collect()
    gc.freeze()
    measures = [(name, rate) for rate in FLOODS for name in ("off", "on")]
    for number in range(rounds):
        for name, rate in measures[:: -1 if number % 2 else 1]:
            say(f"round {number + 1}: {name}, flood of {rate:g}/s")
            async with flooded(directory, valve=name == "on", envoy_workers=workers) as it:
                await bench.latency(it.gateway, ADMITTED, PAYMENTS, 2.0)
                measured = await _measure(bench, it, rate, seconds)
                results.setdefault((name, rate), []).append(measured)
    return results


async def _measure(bench: Bench, flooded: Flooded, rate: float, seconds: float) -> Round:
    processes = [psutil.Process(each.process.pid) for each in (flooded.envoy, flooded.tidegate)]
    async with _flood(flooded.gateway, rate, seconds) as told:
        before = [cpu_seconds(each) for each in processes]
        tally = await bench.tally(flooded.gateway, ADMITTED, PAYMENTS, seconds)
        crashed = flooded.envoy.process.returncode is not None
        used = [
            0.0 if crashed else cpu_seconds(each) - was
            for each, was in zip(processes, before, strict=True)
        ]
    times = tally.total[Kind.ENGINE].percentiles(50, 99, 100)
    payments = Latency(*times, *tally.lateness.percentiles(99))
    failed = 1.0 - tally.answers[Kind.ENGINE] / tally.sent
    return Round(payments, failed, crashed, told, used[0] / seconds, used[1] / seconds)


@asynccontextmanager
async def _flood(gateway: Gateway, rate: float, seconds: float) -> AsyncIterator[dict[str, Any]]:
    told: dict[str, Any] = {}
    if not rate:
        yield told
        return
    command = [sys.executable, "-m", "bench.flood", gateway.url, SHED, str(rate), str(seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    await asyncio.sleep(0.7)  # its start, which is no flood yet
    yield told
    output, _ = await process.communicate()
    if process.returncode:
        raise NotReadyError("the flood could not be sent")
    told.update(json.loads(output))


def table(results: Results) -> Table:
    """Return what was measured."""
    found = Table(
        title=f"payments at {PAYMENTS:g}/s beside a flood of a closed class; medians", box=None
    )
    for heading in ("valve", "flood", "p50 ms", "p99 ms", "rounds", "x", "failed", "crashed", "late ms", "answered/s",
                    "flood late ms", "CPU Envoy", "Tidegate", "flood"):  # fmt: skip
        found.add_column(heading, justify="right", no_wrap=True)
    for (name, rate), rounds in results.items():
        calm = statistics.median(each.payments.p99 for each in results[name, 0.0])
        tails = [each.payments.p99 for each in rounds]
        told = [each.flood for each in rounds if each.flood]
        seconds = [each["sent"] / rate for each in told]
        answered = [
            each["answers"].get(Kind.FALLBACK.value, 0) / lasted
            for each, lasted in zip(told, seconds, strict=True)
        ]
        found.add_row(
            name,
            f"{rate:g}/s",
            f"{statistics.median(each.payments.p50 for each in rounds) * 1e3:.1f}",
            f"{statistics.median(tails) * 1e3:.1f}",
            f"{min(tails) * 1e3:.1f}–{max(tails) * 1e3:.1f}",
            f"{statistics.median(tails) / calm:.1f}",
            f"{max(each.failed for each in rounds):.1%}",
            f"{sum(each.crashed for each in rounds)}/{len(rounds)}",
            f"{statistics.median(each.payments.late for each in rounds) * 1e3:.1f}",
            f"{statistics.median(answered):.0f}" if told else "",
            f"{statistics.median(each['late'] for each in told) * 1e3:.1f}" if told else "",
            f"{statistics.median(each.envoy for each in rounds):.2f}",
            f"{statistics.median(each.tidegate for each in rounds):.2f}",
            f"{statistics.median(each['cpu'] / s for each, s in zip(told, seconds, strict=True)):.2f}"
            if told
            else "",
        )
    return found


def _document(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "valve": name,
            "flood": rate,
            "p50": each.payments.p50,
            "p99": each.payments.p99,
            "late": each.payments.late,
            "failed": each.failed,
            "crashed": each.crashed,
            "flood_answers": each.flood,
            "cpu_envoy": each.envoy,
            "cpu_tidegate": each.tidegate,
        }
        for (name, rate), rounds in results.items()
        for each in rounds
    ]


if __name__ == "__main__":
    typer.run(main)
