"""``tidegate envoy``: writes the Envoy configuration in every form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from extproc.config.command import load_or_exit, refusal

FormName = Literal["bootstrap", "ecds", "cds", "eds", "include", "istio", "gateway"]


def envoy(
    config: Annotated[Path, typer.Option(help="the configuration of Tidegate")],
    form: Annotated[FormName | None, typer.Option(help="what to write it for")] = None,
    output: Annotated[
        Path | None, typer.Option(help="a directory to write to: all forms, or the one given")
    ] = None,
) -> None:
    """Print the Envoy configuration (default: a standalone bootstrap), or write it to files."""
    # Heavy: Envoy's messages. No other command needs them.
    from extproc.envoyconf.bootstrap import NoPoolError
    from extproc.envoyconf.forms import EndpointsFileError, Form, files

    loaded = load_or_exit(config)
    chosen = Form(form) if form else None
    try:
        if output is None:
            typer.echo(
                "---\n".join(text for _, text in files(loaded, chosen or Form.BOOTSTRAP)), nl=False
            )
            return
        output.mkdir(parents=True, exist_ok=True)
        for name, text in files(loaded, chosen):
            _replace(output / name, text)
    except (NoPoolError, EndpointsFileError) as error:
        raise refusal(config, error) from error


def _replace(file: Path, text: str) -> None:
    """Write a file that Envoy may be watching: it reloads on a rename, and never sees a half."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
