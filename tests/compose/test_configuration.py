"""The configuration of the compose network, and Envoy's, which is generated from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extproc.cli import app
from extproc.config import load
from extproc.config.model import DEFAULT_CLASSES
from extproc.envoyconf.binary import find_envoy


def test_tidegate_can_use_its_configuration(directory: Path) -> None:
    config = load(directory / "tidegate.yaml")
    assert {name: tenant.class_ for name, tenant in config.tenants.items()} == {
        "pay": "P0",
        "service": "P1",
        "marketing": "P2",
        "anonymous": "P2",
    }
    assert config.classes == DEFAULT_CLASSES


def test_envoys_configuration_is_what_tidegate_generates(directory: Path) -> None:
    arguments = ["envoy", "--config", str(directory / "tidegate.yaml"), "--form", "bootstrap"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == (directory / "envoy.yaml").read_text(encoding="utf-8")


@pytest.mark.e2e
def test_envoy_accepts_its_configuration(directory: Path) -> None:
    command = [str(find_envoy()), "--mode", "validate", "-c", str(directory / "envoy.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
