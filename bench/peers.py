"""Gateways that could be put in Tidegate's place: how each is installed and started here.

Rules this module keeps:

* Each has an environment of its own in ``.peers``, made once; none is a dependency of this project.
* One version of each is named, so that a figure can be had again. LiteLLM 1.106.12 is the newest whose
  ``proxy`` extra can be installed from PyPI.
* All are started as their documentation says, with nothing switched off that a user would have on, but
  what would reach beyond this machine; logs are kept to errors.
* Who cannot be installed or started is named with the reason; that is no failure of a benchmark.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from extproc.stand.ports import free_port

HOME = Path(__file__).resolve().parents[1] / ".peers"


class NotInstalledError(RuntimeError):
    """A product cannot be installed here; the text says what pip said last."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a product is started, and how it is called then."""

    command: Sequence[str]
    port: int
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A product.

    Attributes:
        name: of its distribution.
        version: of it.
        run: from its ``bin`` folder, a folder for its files and the engine's port to how it is started.
        extra: of its distribution, in brackets.
    """

    name: str
    version: str
    run: Callable[[Path, Path, int], Run]
    extra: str = ""

    def installed(self, home: Path = HOME) -> Path:
        """Return the ``bin`` folder of its environment, which is made if it is not there.

        Raises:
            NotInstalledError: it cannot be installed.
        """
        folder = home / f"{self.name}-{self.version}"
        if not folder.exists():
            partial = home / f"{self.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(partial)])
            what = f"{self.name}{self.extra}=={self.version}"
            _run([str(partial / "bin" / "python"), "-m", "pip", "install", "--quiet", what])
            partial.rename(folder)
        return folder / "bin"


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NotInstalledError((done.stderr.strip() or "pip failed").splitlines()[-1])


def _router(name: str, *words: str) -> Callable[[Path, Path, int], Run]:
    """Return how a router of this family is started: the same options in all three."""

    def run(programs: Path, _: Path, engine: int) -> Run:
        port, metrics = free_port(), free_port()
        options = {
            "--host": "127.0.0.1",
            "--port": str(port),
            "--worker-urls": f"http://127.0.0.1:{engine}",
            "--prometheus-host": "127.0.0.1",
            "--prometheus-port": str(metrics),
            "--log-level": "error",
        }
        flat = [part for pair in options.items() for part in pair]
        return Run([str(programs / "python"), str(programs / name), *words, *flat], port)

    return run


def _litellm(programs: Path, directory: Path, engine: int) -> Run:
    port, key = free_port(), f"sk-{secrets.token_urlsafe(24)}"
    parameters = {
        "model": "hosted_vllm/bench",
        "api_base": f"http://127.0.0.1:{engine}/v1",
        "api_key": "none",
    }
    settings = {
        "model_list": [{"model_name": "bench", "litellm_params": parameters}],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": key},
    }
    file = directory / "litellm.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    local = ["env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"]
    program = [str(programs / "python"), str(programs / "litellm"), "--config", str(file)]
    options = ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    return Run([*local, *program, *options], port, (("authorization", f"Bearer {key}"),))


PEERS = (
    Peer("vllm-router", "0.1.17", _router("vllm-router")),
    Peer("sglang-router", "0.3.2", _router("sglang-router", "launch")),
    Peer("smg", "1.13.0", _router("smg", "launch")),
    Peer("litellm", "1.106.12", _litellm, extra="[proxy]"),
)
