"""How a command reads its configuration: what is wrong with it ends the command."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from extproc.config.load import ConfigError, load
from extproc.config.model import Config

BAD_CONFIGURATION = 2
"""The exit code of a command whose configuration cannot be used."""


def load_or_exit(file: Path) -> Config:
    """Read a configuration; where it cannot be used, say why and exit, with nothing started."""
    try:
        return load(file)
    except ConfigError as error:
        raise refusal(error.file, *error.problems) from error


def refusal(file: Path | str, *problems: object) -> typer.Exit:
    """Print what is wrong with a file; return the exit to raise."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{file} cannot be used:", markup=False)
    for problem in problems:
        console.print(f"  {problem}", markup=False)
    return typer.Exit(BAD_CONFIGURATION)
