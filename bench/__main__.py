"""``python -m bench``: measures Tidegate and its floors, and says which bars are kept."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import report
from bench.measure import Bench
from bench.runs import FULL, QUICK, Extent, Results, run
from bench.stand import running
from extproc.sim.loadgen.precise_loop import precise_loop


def main(
    quick: Annotated[bool, typer.Option("--quick", help="a minute, for a first look")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the results here", dir_okay=False)
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="the tables of docs/benchmarks.md")
    ] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="instead of 5")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="of each measurement, instead of 8")
    ] = None,
    envoy_workers: Annotated[int, typer.Option(min=1, help="worker threads of each Envoy")] = 2,
    seed: Annotated[int, typer.Option(help="of the times at which requests are sent")] = 1,
) -> None:
    """Measure Tidegate behind a real Envoy, each figure beside a floor of the same run.

    A missed bar is said and is no failure. Other work on the machine shows in the figures.
    """
    console = Console(highlight=False, stderr=as_markdown)
    extent = QUICK if quick else FULL
    extent = replace(extent, rounds=rounds or extent.rounds, seconds=seconds or extent.seconds)
    allow_many_connections()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        asyncio.Runner(loop_factory=precise_loop) as runner,
    ):
        results = runner.run(
            _run(console, Path(directory), extent, envoy_workers=envoy_workers, seed=seed)
        )
    if as_markdown:
        typer.echo(report.markdown(results))
    else:
        console.print(report.rates(results))
        console.print(report.figures(results))
    for line in report.missed(results) or ["every bar is kept"]:
        console.print(line, markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(report.document(results), indent=2), encoding="utf-8")


async def _run(
    console: Console, directory: Path, extent: Extent, *, envoy_workers: int, seed: int
) -> Results:
    rng = random.Random(seed)  # noqa: S311 (when requests are sent, no secrets)
    bench = Bench(time.monotonic, rng)
    with console.status("starting") as status:
        async with running(directory, envoy_workers=envoy_workers) as stand:
            # A collection of everything that was ever imported would look like a slow answer.
            gc.collect()
            gc.freeze()
            return await run(stand, bench, extent, status.update)


def allow_many_connections() -> None:
    """Lift the soft limit: open loop means a connection for each answer that is outstanding."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    typer.run(main)
