"""``tidegate drill``: a peak, in virtual time or in real time, and what controllers make of it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from extproc.config import Config, ConfigError, load
from extproc.envoyconf.binary import EnvoyNotFoundError
from extproc.sim.drill import bars, published, report
from extproc.sim.drill.experiment import Cell, Experiment
from extproc.sim.drill.faults import FAULTS
from extproc.sim.drill.knee import NoKneeError, cached_knee
from extproc.sim.drill.lengths import MIXES
from extproc.sim.drill.plot import NoPlottingError, plot
from extproc.sim.drill.runs import CONTROLLERS, SHAPES
from extproc.sim.drill.setting import DEFAULT_TERMS, Setting
from extproc.sim.drill.traces import TraceError, read
from extproc.sim.engine_config import EngineConfig
from extproc.stand.children import ChildEndedError
from extproc.stand.real import measures
from extproc.stand.real.rehearsal import Rehearsal
from extproc.stand.up import NotReadyError

CANNOT_RUN = 1
BAD_OPTION = 2

LOADS, REAL_LOAD = "0.9,1,2,3", "3"
VIRTUAL_CONTROLLERS = "none,watermark,tidegate,clairvoyant"
REAL_CONTROLLERS = "none,watermark,tidegate"
REAL_WARM_UP = 10.0
"""Seconds; in real time they cost."""

_SETTING = Setting()
_ENGINE = _SETTING.engine


def drill(
    mix: Annotated[str, typer.Option(help=f"what calls look like: {', '.join(MIXES)}")] = (
        "balanced"
    ),
    load_: Annotated[
        str | None,
        typer.Option(
            "--load",
            help=f"times the knee of the uncontrolled engines  [default: {LOADS}; real {REAL_LOAD}]",
        ),
    ] = None,
    controllers: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(CONTROLLERS)}; slots:N for N slots  [default: {VIRTUAL_CONTROLLERS}; "
            f"real {REAL_CONTROLLERS}]"
        ),
    ] = None,
    shape: Annotated[str, typer.Option(help=f"how the load moves: {', '.join(SHAPES)}")] = "steady",
    fault: Annotated[str, typer.Option(help=f"what goes wrong: {', '.join(FAULTS)}")] = "none",
    seeds: Annotated[int, typer.Option(min=1, help="how often each cell is played")] = 10,
    trace: Annotated[
        Path | None,
        typer.Option(help="CSV with time, prompt, output, client: replay it", dir_okay=False),
    ] = None,
    scale: Annotated[str, typer.Option(help="with --trace: calls for each of its calls")] = "1,2.5",
    seconds: Annotated[float, typer.Option(min=1, help="how long calls are counted")] = (
        _SETTING.measured
    ),
    resubmit: Annotated[
        float, typer.Option(min=0, max=1, help="share of shed calls whose client comes back once")
    ] = 0.0,
    config: Annotated[
        Path | None,
        typer.Option(help="classes, tenants and pools of your own", dir_okay=False),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="with --config: the pool to drill; default: its first")
    ] = None,
    blocks: Annotated[int, typer.Option(min=2, help="KV blocks of an endpoint")] = (
        _ENGINE.num_gpu_blocks
    ),
    block_size: Annotated[int, typer.Option(min=1, help="tokens per block")] = _ENGINE.block_size,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="sequences that run at a time")] = (
        _ENGINE.max_num_seqs
    ),
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="tokens of one step")] = (
        _ENGINE.max_num_batched_tokens
    ),
    endpoints: Annotated[
        int | None, typer.Option(min=1, help="how many; default: as configured, else 2")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="to play on")] = os.cpu_count() or 1,
    json_: Annotated[Path | None, typer.Option("--json", help="write the numbers here")] = None,
    plot_: Annotated[
        Path | None, typer.Option("--plot", help="draw them into this .png or .svg")
    ] = None,
    publish: Annotated[
        Path | None, typer.Option(help="play the published experiment and write this .md")
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="in real time, through Envoy, the first mix and load")
    ] = False,
    engine_: Annotated[
        list[str] | None,
        typer.Option("--engine", help="with --real: host:port of a vLLM server; repeat for more"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="with --real: calls per second, not --load")
    ] = None,
) -> None:
    """Play a peak, and compare what controllers make of it.

    In virtual time, engines are modelled step by step; the controller is the one that serves. Equal
    seeds give equal results. With --real, a real Envoy and Tidegate stand before emulated engines, or
    your own, and calls leave when they are due, however slow the answers are.
    """
    console = Console()
    with _explained():
        engine = EngineConfig(
            num_gpu_blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=min(_ENGINE.longest, (blocks - 1) * block_size),
        )
        setting = replace(_setting(engine, config, pool, endpoints, seconds), resubmit=resubmit)
        mixes, shapes, faults = _known(mix, MIXES), _known(shape, SHAPES), _known(fault, FAULTS)
        loads = _numbers(load_ or (REAL_LOAD if real else LOADS))
        names = _names(controllers or (REAL_CONTROLLERS if real else VIRTUAL_CONTROLLERS))
        if trace is not None:
            read(trace)  # what is wrong with it shows now
            setting = setting.lasting(warm_up=0.0, measured=seconds, tail=0.0)
            mixes, loads, shapes, faults = ["trace"], _numbers(scale), ["steady"], ["none"]
    if real:
        engines = tuple(each.removeprefix("http://").rstrip("/") for each in engine_ or ())
        _rehearse(console, setting, mixes[0], (rate, loads[0]), names, engines, publish)
        return
    cells = bars.cells() if publish else _cells(mixes, loads, names, shapes, faults)
    experiment = Experiment(setting, cells, range(1, seeds + 1), trace)
    try:
        _play(experiment, processes, console)
        for table in report.tables(experiment):
            console.print(table)
        if json_ is not None:
            json_.write_text(report.as_json(experiment))
        if publish is not None:
            before = publish.read_text() if publish.exists() else ""
            publish.write_text(published.page(experiment, before))
        if plot_ is not None:
            plot(experiment, plot_)
    except (NoKneeError, NoPlottingError, ValueError, OSError) as error:
        raise _stop(str(error), CANNOT_RUN) from error


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """End the command with what is wrong with an option."""
    try:
        yield
    except ConfigError as error:
        lines = "\n  ".join(map(str, error.problems))
        raise _stop(f"{error.file} cannot be used:\n  {lines}", BAD_OPTION) from error
    except (ValueError, TraceError, OSError) as error:
        raise _stop(str(error), BAD_OPTION) from error


def _rehearse(
    console: Console,
    setting: Setting,
    mix: str,
    pressure: tuple[float | None, float],
    controllers: Sequence[str],
    engines: tuple[str, ...],
    publish: Path | None,
) -> None:
    """Play in real time, print, and put the result into the published page.

    ``pressure`` is the rate in calls per second, or else how many times the knee.
    """
    setting = setting.lasting(warm_up=REAL_WARM_UP, measured=setting.measured, tail=0.0)
    rate, load_ = pressure
    try:
        told = f"{rate:g} calls per second" if rate else f"{load_:g}×"
        rate = rate or load_ * cached_knee(setting, MIXES[mix])
        rehearsal = Rehearsal(setting, MIXES[mix], rate, engines=engines)
        played = rehearsal.play(controllers, lambda name: console.print(f"playing {name} …"))
    except ValueError as error:
        raise _stop(str(error), BAD_OPTION) from error
    except (NoKneeError, EnvoyNotFoundError, ChildEndedError, NotReadyError) as error:
        raise _stop(str(error), CANNOT_RUN) from error
    virtual = {} if engines else rehearsal.model(controllers)
    where = "engines of one's own" if engines else f"{setting.endpoints} emulated engines"
    text = measures.page(f"{mix}, {told}, {setting.measured:g} s, {where}.", played, virtual)
    console.print(text, markup=False, soft_wrap=True)
    if publish is not None:
        before = publish.read_text() if publish.exists() else ""
        publish.write_text(published.with_real(before, text))


def _setting(
    engine: EngineConfig,
    config: Path | None,
    pool_name: str | None,
    endpoints: int | None,
    seconds: float,
) -> Setting:
    """Return where to play: by the options, and by the user's configuration if there is one.

    Raises:
        ConfigError: the configuration cannot be used.
        ValueError: there is no such pool, or more classes than the drill has terms for.
    """
    if config is None:
        return Setting(engine=engine, endpoints=endpoints or 2, measured=seconds)
    settings: Config = load(config)
    name = pool_name or next(iter(settings.pools), None)
    if name not in settings.pools:
        raise ValueError(f"{config} has no pool {name}" if name else f"{config} has no pool")
    if len(settings.classes) > len(DEFAULT_TERMS):
        raise ValueError(f"a drill has {len(DEFAULT_TERMS)} classes, {config} has more")
    pool = settings.pools[name]
    return Setting(
        config=settings,
        engine=engine,
        endpoints=endpoints or len(pool.endpoints.static or (1, 2)),
        terms=DEFAULT_TERMS[: len(settings.classes)],
        max_concurrency=pool.max_concurrency,
        pick=pool.balance == "pick",
        scrape_interval=pool.scrape.interval,
        stale_after=pool.scrape.stale_after,
        unknown_after=pool.scrape.unknown_after,
        measured=seconds,
    )


def _cells(
    mixes: Sequence[str],
    loads: Sequence[float],
    controllers: Sequence[str],
    shapes: Sequence[str],
    faults: Sequence[str],
) -> list[Cell]:
    return [
        Cell(*each)
        for shape, fault in itertools.product(shapes, faults)
        for each in itertools.product(
            mixes, loads if shape != "surge" else (1.0,), controllers, (shape,), (fault,)
        )
    ]


def _play(experiment: Experiment, processes: int, console: Console) -> None:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
    ) as bars:
        experiment.play(processes, _shower(bars))


def _shower(bars: Progress) -> Callable[[str, int, int], None]:
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)

    return show


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        kind, _, number = name.partition(":")
        if kind not in CONTROLLERS or (number and not (kind == "slots" and number.isdigit())):
            raise ValueError(f"there is no controller {name}: use {', '.join(CONTROLLERS)}")
    return names


def _known(text: str, known: Collection[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {name}: use {', '.join(known)}")
    return names


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{text} is no list of numbers") from error
    if not all(0.0 < number < 1000.0 for number in numbers):
        raise ValueError(f"{text}: loads are over 0 and under 1000")
    return numbers


def _stop(text: str, code: int) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(code)
