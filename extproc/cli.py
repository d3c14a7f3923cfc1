"""The ``tidegate`` command.

Exit codes: 0 done, 1 it could not run, 2 the configuration or an option is wrong (nothing started).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import uvloop
from rich.console import Console

from extproc import __version__
from extproc.config import Config, ConfigError, load, load_keys, of_worker, with_workers
from extproc.console.cli import console as web_console
from extproc.control import attribution_cli
from extproc.control import cli as control_cli
from extproc.envoyconf.binary import EnvoyNotFoundError
from extproc.envoyconf.errors import GenerationError
from extproc.quota.cli import quota
from extproc.sim.emulator.cli import emulate
from extproc.sim.loadgen import cli as load_cli
from extproc.stand.children import ChildEndedError
from extproc.stand.drill import drill
from extproc.stand.plan import make_plan
from extproc.stand.plan import tidegate as tidegate_command
from extproc.stand.redis import RedisNotFoundError
from extproc.stand.up import NotReadyError, up
from extproc.telemetry import logs

app = typer.Typer(
    name="tidegate",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

CANNOT_RUN = 1
BAD_CONFIGURATION = 2

FormName = Literal["bootstrap", "include", "ecds", "cds", "eds", "istio", "gateway"]
ConfigFile = Annotated[Path, typer.Option("--config", help="the configuration", dir_okay=False)]
Workers = Annotated[
    int | None, typer.Option(min=1, max=64, help="processes; default: listen.workers")
]


def main() -> None:
    """Entry point of the command."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        _say(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show it and exit"),
    ] = False,
) -> None:
    """Keeps paying LLM traffic alive in a peak: an Envoy external processor for vLLM."""


@app.command(name="up")
def run_stand(
    engine: Annotated[
        list[str] | None,
        typer.Option(help="host:port of a running vLLM server; repeat for more. Default: emulated"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="where Envoy listens; 0: any")] = 8080,
    config: Annotated[
        Path | None, typer.Option(help="classes, tenants, fallback of your own", dir_okay=False)
    ] = None,
    workers: Workers = None,
) -> None:
    """Start Envoy, Tidegate and engines on this machine, to try it; Ctrl-C stops it all."""
    engines = tuple(each.removeprefix("http://").rstrip("/") for each in engine or ())
    if config is not None:
        _load_or_exit(config)
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="tidegate-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        try:
            plan = make_plan(directory, port=port, engines=engines, config=config, workers=workers)
            load_keys(plan.config)  # a file that is not there is told before anything runs
        except ConfigError as error:
            raise _bad_configuration(error) from error
        except OSError as error:
            _say(f"port {port} is taken: choose another with --port ({error.strerror})", error=True)
            raise typer.Exit(CANNOT_RUN) from error
        try:
            _run_until_stopped(up(plan, Console()))
        except* (ChildEndedError, NotReadyError, EnvoyNotFoundError, RedisNotFoundError) as group:
            stack.pop_all()  # the logs, which tell why, stay
            raise _cannot_run(group) from group


app.command()(load_cli.load)
app.add_typer(control_cli.mode_app, name="mode")
app.add_typer(control_cli.thresholds_app, name="thresholds")
app.command()(attribution_cli.explain)
app.command()(attribution_cli.why)
app.command()(control_cli.audit)
app.command()(control_cli.token)
app.command(name="console")(web_console)
app.command()(drill)


@app.command()
def check(file: Annotated[Path, typer.Argument(help="the configuration to check")]) -> None:
    """Say whether a configuration can be used, and what is wrong with it if not."""
    config = _load_or_exit(file)
    for source in config.identity.sources:
        if source.api_key is not None and not source.api_key.file.exists():
            # A configuration is often checked where its secrets are not.
            _say(f"note: {source.api_key.file} is not here to be checked")
    if config.listen.workers > 1 and config.agents is not None:
        _say("note: each worker counts the runs of agents by what it sees of them")
    _say(f"{file} is fine")


@app.command()
def serve(
    config: ConfigFile,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="TIDEGATE_LOG_LEVEL", help="what is logged, and above"),
    ] = "info",
    workers: Workers = None,
    worker: Annotated[int, typer.Option(hidden=True)] = 0,
    pages: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Run the processor that Envoy asks. SIGHUP has it take over a configuration that has changed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until somebody hears it
    logs.configure(sys.stderr, logs.LEVELS[log_level])
    logs.own_faults()
    settings = _load_or_exit(config, workers, worker)
    if not worker and settings.listen.workers > 1:
        _supervise(config, settings, log_level)
    else:
        _process(config, settings, partial(_load, config, workers, worker), worker, pages)


def _supervise(file: Path, settings: Config, log_level: str) -> None:
    """Run several workers, each of which is this very command."""
    from extproc.edge.server import CannotListenError
    from extproc.workers.supervisor import Supervisor, WorkerEndedError

    count = settings.listen.workers

    def command(number: int, pages: int) -> list[str]:
        what = ["serve", "--config", str(file), "--log-level", log_level]
        which = ["--workers", str(count), "--worker", str(number), "--pages", str(pages)]
        return [*tidegate_command(), *what, *which]

    async def run() -> None:
        supervisor = Supervisor(count, command, settings.listen.http)
        stop = _stop_on(signal.SIGINT, signal.SIGTERM)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.reload)
        await supervisor.run(stop, lambda: _say(f"serving with {count} workers"))

    try:
        uvloop.run(run())
    except* CannotListenError as group:
        raise _cannot_run(group) from group
    except* WorkerEndedError as group:
        first = group.exceptions[0]
        _say(str(first), error=True)
        raise typer.Exit(first.code if isinstance(first, WorkerEndedError) else 1) from group


def _process(
    file: Path, settings: Config, read: Callable[[], Config], worker: int, pages: int
) -> None:
    """Run the processor in this process, alone or as a worker of several; ``read`` reads it anew."""
    from extproc import app as application  # heavy: only this command needs them
    from extproc.edge.server import CannotListenError
    from extproc.quota.errors import QuotaError
    from extproc.workers import worker as child

    try:
        tidegate = application.build(settings, child.read_secret() if worker else None)
    except ConfigError as error:
        raise _bad_configuration(error) from error
    except QuotaError as error:
        _say(str(error), error=True)
        raise typer.Exit(CANNOT_RUN) from error

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(logs.loop_fault)
        stop = _stop_on(signal.SIGINT, signal.SIGTERM)
        reloading = application.reloading(tidegate, file, read)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloading.ask)
        if worker:
            child.stop_with_parent(asyncio.get_running_loop(), stop)
        await application.serve(
            tidegate,
            stop,
            lambda: _say(f"serving {settings.listen.processor}"),
            child.pages_socket(pages) if worker else None,
            reloading,
        )

    try:
        uvloop.run(run())
    except* (CannotListenError, QuotaError) as group:
        raise _cannot_run(group) from group


@app.command()
def envoy(
    config: ConfigFile,
    form: Annotated[
        FormName | None, typer.Option(help="what to write it for; without --output: bootstrap")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="a directory for the files of all forms, or of --form")
    ] = None,
    workers: Workers = None,
) -> None:
    """Print the Envoy configuration, or write its files."""
    from extproc.envoyconf import forms  # heavy: only this command needs all of it

    settings = _load_or_exit(config, workers)
    chosen = forms.Form(form) if form else None
    try:
        if output is not None:
            forms.write(settings, output, chosen)
            return
        texts = dict(forms.files(settings, chosen or forms.Form.BOOTSTRAP)).values()
    except (GenerationError, ConfigError) as error:
        _say(f"{config} cannot be used:\n  {error}", error=True)
        raise typer.Exit(BAD_CONFIGURATION) from error
    except OSError as error:
        _say(f"{output} cannot be written: {error.strerror}", error=True)
        raise typer.Exit(CANNOT_RUN) from error
    typer.echo("---\n".join(texts), nl=False)


app.command()(emulate)
app.add_typer(quota)


def _run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run until done, or until Ctrl-C, SIGTERM or the terminal's end cancels it: that is no error."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    uvloop.run(run())


def _stop_on(*numbers: signal.Signals) -> asyncio.Event:
    """Return what is set when one of these signals comes."""
    stop = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _load(file: Path, workers: int | None, worker: int) -> Config:
    """Return a configuration as the command's options change it."""
    config = load(file)
    if workers is not None:
        config = with_workers(config, workers, file)
    return of_worker(config, worker) if worker else config


def _load_or_exit(file: Path, workers: int | None = None, worker: int = 0) -> Config:
    try:
        return _load(file, workers, worker)
    except ConfigError as error:
        raise _bad_configuration(error) from error


def _bad_configuration(error: ConfigError) -> typer.Exit:
    _say(f"{error.file} cannot be used:", error=True)
    for problem in error.problems:
        _say(f"  {problem}", error=True)
    return typer.Exit(BAD_CONFIGURATION)


def _cannot_run(group: BaseExceptionGroup[Any]) -> typer.Exit:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _cannot_run(error)
        else:
            _say(str(error), error=True)
    return typer.Exit(CANNOT_RUN)


def _say(text: str, *, error: bool = False) -> None:
    Console(stderr=error, soft_wrap=True, highlight=False).print(text, markup=False)
