"""Why no Envoy configuration can be written from a configuration that is valid in itself."""

from __future__ import annotations

from pathlib import Path


class GenerationError(Exception):
    """No Envoy configuration can be written; the text says what to mend."""


class NoPoolError(GenerationError):
    """The configuration has no pool, so Envoy would have nowhere to send a request."""

    def __init__(self) -> None:
        super().__init__("pools: Envoy needs at least one pool to send requests to")


class EndpointsFileError(GenerationError):
    """The file that lists a pool's endpoints cannot be used."""

    def __init__(self, pool: str, file: Path, reason: str) -> None:
        super().__init__(f"pools.{pool}.endpoints.file = {file}: {reason}")
