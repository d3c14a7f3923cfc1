"""Folders with short paths, because sockets are in them, and a PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.quota.ledger.postgres_server import PostgresServer, running_postgres


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidegate-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with (
        tempfile.TemporaryDirectory(prefix="pg-") as home,
        running_postgres(Path(home)) as server,
    ):
        yield server
