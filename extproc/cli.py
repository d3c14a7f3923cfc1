"""The ``tidegate`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from extproc.config import Config, ConfigError, load
from extproc.sim.cli import emulate

app = typer.Typer(
    name="tidegate",
    help="Keeps paying LLM traffic alive in a peak: an Envoy external processor for vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

BAD_CONFIGURATION = 2


def main() -> None:
    """Entry point of the command."""
    app()


def _load_or_exit(file: Path) -> Config:
    try:
        return load(file)
    except ConfigError as error:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"{error.file} cannot be used:", markup=False)
        for problem in error.problems:
            console.print(f"  {problem}", markup=False)
        raise typer.Exit(BAD_CONFIGURATION) from error


@app.callback()
def _group() -> None:
    """Keep ``check`` a sub-command while it is the only one."""


@app.command()
def check(file: Annotated[Path, typer.Argument(help="the configuration to check")]) -> None:
    """Say whether a configuration can be used, and what is wrong with it if not."""
    config = _load_or_exit(file)
    console = Console(soft_wrap=True, highlight=False)
    for source in config.identity.sources:
        if source.api_key is not None and not source.api_key.file.exists():
            # A configuration is often checked where its secrets are not.
            console.print(f"note: {source.api_key.file} is not here to be checked", markup=False)
    console.print(f"{file} is fine", markup=False)


app.command()(emulate)
