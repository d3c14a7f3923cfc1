"""Starts real vLLM servers on free loopback ports and stops them again.

- Every server runs in a process group of its own, and the whole group is ended, however the
  caller leaves; should the caller be killed, the kernel tells the server to end.
- A server that dies or does not become healthy is reported with the end of its log.
- All start at the same time: a start is mostly imports, so two cores start two in the time of one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from extproc.stand.ports import free_ports
from tests.vllm.environment import HOME, Environment, environment, tail

MODEL = "tiny"
"""The name under which the servers offer their model."""
SLOTS = 8
"""How many requests a server runs at once; the others wait."""
BLOCKS = 128
"""Few, so that a handful of prompts fills them."""
BLOCK_SIZE = 32
FLAGS = (
    *("--served-model-name", MODEL),
    *("--scheduling-policy", "priority"),
    *("--max-model-len", "2048"),
    *("--max-num-seqs", str(SLOTS)),
    *("--kv-cache-memory-bytes", "64M"),
    *("--num-gpu-blocks-override", str(BLOCKS)),
    *("--block-size", str(BLOCK_SIZE)),
    "--enforce-eager",
)
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Without this the model runs in a third process, one too many for two cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CACHE_ROOT": str(HOME / "cache"),
    "VLLM_CONFIG_ROOT": str(HOME / "cache"),
}
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
END_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")
START_TIMEOUT = 240.0
STOP_TIMEOUT = 15.0


class StartError(Exception):
    """A server did not become healthy; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """One running vLLM server."""

    url: str
    """Where it listens, as ``http://host:port``."""
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def vllm_servers(count: int = 2, flags: Sequence[str] = ()) -> Iterator[list[Server]]:
    """Run ``count`` healthy servers for as long as the context is open.

    ``flags`` come after the usual ones, so they win over them.

    Raises:
        BuildError: the environment could not be built.
        StartError: a server ended, or was not healthy within 240 seconds.
    """
    home = environment()
    with ExitStack() as stack:
        servers = [stack.enter_context(_running(home, port, flags)) for port in free_ports(count)]
        deadline = time.monotonic() + START_TIMEOUT
        for server in servers:
            _wait_until_healthy(server, deadline)
        yield servers


@contextmanager
def _running(home: Environment, port: int, flags: Sequence[str]) -> Iterator[Server]:
    log = HOME / "logs" / f"server-{port}.log"
    where = ("--model", str(home.model), "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*END_WITH_PARENT, home.python, "-I", *SERVER, *where, *FLAGS, *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | SETTINGS,
            start_new_session=True,
        )
    try:
        yield Server(f"http://127.0.0.1:{port}", process, log)
    finally:
        _stop(process)


def _wait_until_healthy(server: Server, deadline: float) -> None:
    while not _healthy(server):
        if (status := server.process.poll()) is not None:
            problem = f"ended with status {status}"
        elif time.monotonic() > deadline:
            problem = f"was not healthy within {START_TIMEOUT:.0f} s"
        else:
            time.sleep(0.25)
            continue
        raise StartError(f"vLLM {problem}. The end of {server.log}:\n{tail(server.log)}")


def _healthy(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
