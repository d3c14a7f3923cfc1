"""Opening the ledger's database, SQLite or PostgreSQL.

Rules this module keeps:

* One writer at a time, in both: what writes begins with `writing`, which waits for whoever is at it.
  So transactions are numbered in the order in which they become visible, and none ever deadlocks.
* Readers wait for nobody.
* Nothing waits for ever: a database that hangs or is locked is an error after some seconds.
* An error names the database without its password.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from extproc.quota.errors import LedgerUnavailableError

REVISION = "0001"
"""The last of the steps in `migrations`."""
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 30
LOCK_SECONDS = 10
_WRITERS = 0x7469646567617465  # "tidegate": names the lock that writers hold in PostgreSQL


def open_database(url: str, statement_seconds: int = STATEMENT_SECONDS) -> Engine:
    """Return an engine for ``sqlite:///path`` or ``postgresql://…``; nothing is connected yet.

    Args:
        url: as configured.
        statement_seconds: how long PostgreSQL may work at a statement; 0: as long as it likes.

    Raises:
        LedgerUnavailableError: the URL cannot be read, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed)
        return _postgresql(parsed, statement_seconds)
    except ArgumentError as error:
        raise LedgerUnavailableError(
            "state.database: write sqlite:///path or postgresql://…"
        ) from error
    except ModuleNotFoundError as error:
        raise LedgerUnavailableError(
            "PostgreSQL needs its driver: pip install 'tidegate[postgres]'"
        ) from error


def _sqlite(url: URL) -> Engine:
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": LOCK_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver would not for DDL
        _keep_log(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _keep_log(connection: sqlite3.Connection) -> None:
    """Have SQLite log ahead of writing, by which readers wait for nobody.

    It waits for no lock while the file is new and others switch it as well: so it is asked again.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _postgresql(url: URL, statement_seconds: int) -> Engine:
    timeouts = f"-c statement_timeout={statement_seconds}s -c lock_timeout={LOCK_SECONDS}s"
    return sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={
            "connect_timeout": CONNECT_SECONDS,
            "options": timeouts,
            "keepalives_idle": CONNECT_SECONDS,
            "tcp_user_timeout": 1000 * LOCK_SECONDS,
        },
        hide_parameters=True,
        pool_size=1,
        max_overflow=1,
        pool_pre_ping=True,
    )


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction that is the only one to write; commit it at the end."""
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITERS)))
        yield connection


def migrate(engine: Engine) -> None:
    """Bring the tables up to what this Tidegate needs; safe where several start at once.

    Raises:
        LedgerUnavailableError: a newer Tidegate has made the tables.
    """
    with engine.connect() as connection:
        if _revision(connection) == REVISION:
            return
    from extproc.quota.migrations import upgrade  # 12 MiB that are needed once

    with writing(engine) as connection:
        upgrade(connection, _revision(connection))


def _revision(connection: Connection) -> str | None:
    """Return how far Alembic has come, or None where it was never here."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def shown(engine: Engine) -> str:
    """Return the URL without its password."""
    return engine.url.render_as_string(hide_password=True)
