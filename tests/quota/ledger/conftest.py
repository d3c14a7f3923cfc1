"""What quota tests share: a real PostgreSQL of this run's own, and a ledger on either database."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from tests.quota.ledger.postgres_server import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for the whole run."""
    # A socket's path must be short, and pytest's folders are not.
    with (
        tempfile.TemporaryDirectory(prefix="pg-") as home,
        running_postgres(Path(home)) as server,
    ):
        yield server


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
