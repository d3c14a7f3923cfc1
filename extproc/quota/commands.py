"""What the commands of ``tidegate quota`` do: ask the ledger, and print what it says.

Rule this module keeps: times are those of the plan's own time zone, texts in the tenant's language.
"""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from extproc.config import Config
from extproc.quota import administration, booking, campaign
from extproc.quota.administration import Balance, Line
from extproc.quota.database import migrate, open_database, shown, writing
from extproc.quota.errors import LedgerUnavailableError
from extproc.quota.plans import quota_plans
from extproc.quota.schema import Kind
from extproc.quota.wording import BALANCE, HEADINGS, NOT_CHARGED, Language, explain


@contextlib.contextmanager
def open_commands(settings: Config) -> Iterator[Commands]:
    """Give the commands on a configuration's ledger, whose tables are made where need be.

    Raises:
        QuotaError: the ledger cannot be used, or what was asked of it cannot be done.
    """
    engine = open_database(settings.state.database, statement_seconds=0)
    try:
        migrate(engine)
        yield Commands(settings, engine)
    except DBAPIError as error:
        name = shown(engine)
        raise LedgerUnavailableError(f"{name} does not do it: {error.orig}") from error
    finally:
        engine.dispose()


class Commands:
    """The commands, on one ledger."""

    def __init__(self, settings: Config, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._plans = quota_plans(settings)
        self._console = Console(highlight=False)

    def show(self, tenant: str, language: Language | None) -> None:
        """Print what a tenant has now."""
        balance = administration.show(self._engine, self._plans, tenant, _now())
        self._show(balance, language or self._language(tenant))

    def give(
        self, kind: Literal["grant", "adjust"], tenant: str, tokens: int, ident: str, reason: str
    ) -> None:
        """Give or take tokens, and print what the tenant then has."""
        balance, changed = administration.give(
            self._engine, self._plans, tenant, Kind(kind), tokens, ident, reason, _now()
        )
        if not changed:
            self._say(f"{ident} has been done before; nothing changes")
        self._show(balance, self._language(tenant))

    def statement(
        self, tenant: str, at: datetime | None, form: str, language: Language | None
    ) -> None:
        """Print all transactions of the period that a moment lies in."""
        moment = _now() if at is None else round(1000 * at.timestamp())
        balance = administration.show(self._engine, self._plans, tenant, moment)
        language = language or self._language(tenant)
        with self._engine.connect() as connection:
            lines = administration.statement(connection, balance.id)
            if form == "table":
                self._show(balance, language)
                self._console.print(_table(lines, self._zone(balance), language))
            else:
                _PRINTERS[form](_records(lines, self._zone(balance), language))

    def compensate(self, ident: str, below: float, bonus: float, *, apply: bool) -> None:
        """Apply a campaign with a progress bar, or look at what it would do; print the sums."""
        rule = campaign.Rule.of(below, bonus)
        if not apply:
            done = campaign.preview(self._engine, rule, _now())
        else:
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Bar(TextColumn("compensating"), *columns, console=Console(stderr=True)) as bar:
                task = bar.add_task("", total=None)
                for done in campaign.apply(self._engine, ident, rule, _now()):
                    bar.update(task, completed=done.done, total=done.total)
        how = "applied" if apply else "dry run, nothing has changed"
        self._console.print(_summary(done, f"Campaign {ident}: {how}"))

    def rebuild(self) -> None:
        """Make the balances anew."""
        with writing(self._engine) as connection:
            wrong = booking.rebuild(connection)
        self._say(f"{wrong} balances were wrong" if wrong else "all balances were right")

    def migrated(self) -> None:
        """Say that the tables are made."""
        self._say(f"the tables of {shown(self._engine)} are up to date")

    def _show(self, balance: Balance, language: Language) -> None:
        zone = self._zone(balance)
        period = f"{_when(balance.starts_at, zone)} – {_when(balance.ends_at, zone)} ({zone})"
        amounts = (balance.total, balance.used, balance.held, balance.available - balance.held)
        values = (balance.tenant, balance.plan or "–", period, *(f"{each:,}" for each in amounts))
        for name, value in zip(BALANCE[language], values, strict=True):
            self._say(f"{name}: {value}")

    def _language(self, tenant: str) -> Language:
        known = self._settings.tenants.get(tenant)
        return (known and known.language) or self._settings.fallback.language

    def _zone(self, balance: Balance) -> ZoneInfo:
        plan = self._plans.plans.get(balance.plan)
        return plan.zone if plan else ZoneInfo("UTC")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _now() -> int:
    return round(1000 * time.time())


def _when(at: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(at / 1000, zone).isoformat(" ", "seconds")


def _explain(line: Line, language: Language) -> str:
    return explain(
        line.kind,
        language,
        exchange=line.exchange,
        outcome=line.outcome,
        estimated=line.estimated,
        note=line.note,
    )


def _table(lines: Iterator[Line], zone: ZoneInfo, language: Language) -> Table:
    when, what, tokens, left = HEADINGS[language]
    table = Table(caption=NOT_CHARGED[language], caption_justify="left")
    table.add_column(when, no_wrap=True)
    table.add_column(what, overflow="fold")
    table.add_column(tokens, justify="right")
    table.add_column(left, justify="right")
    for line in lines:
        text = _explain(line, language)
        table.add_row(_when(line.at, zone), text, f"{line.tokens:+,}", f"{line.balance:,}")
    return table


def _records(lines: Iterator[Line], zone: ZoneInfo, language: Language) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield {
            "time": _when(line.at, zone),
            "kind": line.kind.value,
            "exchange": line.exchange,
            "outcome": line.outcome,
            "estimated": line.estimated,
            "tokens": line.tokens,
            "left": line.balance,
            "text": _explain(line, language),
        }


def _print_csv(records: Iterator[dict[str, Any]]) -> None:
    names = ["time", "kind", "exchange", "outcome", "estimated", "tokens", "left", "text"]
    writer = csv.DictWriter(sys.stdout, names)
    writer.writeheader()
    writer.writerows(records)


def _print_json(records: Iterator[dict[str, Any]]) -> None:
    for record in records:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")


_PRINTERS: Mapping[str, Callable[[Iterator[dict[str, Any]]], None]] = MappingProxyType(
    {"csv": _print_csv, "json": _print_json}
)


def _summary(done: campaign.Progress, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("subscriptions", justify="right")
    table.add_column("tokens", justify="right")
    for name, count, tokens in (
        ("use made 0", done.resets, done.reset_tokens),
        ("bonus added", done.bonuses, done.bonus_tokens),
        ("nothing to do", done.untouched, 0),
    ):
        table.add_row(name, f"{count:,}", f"{tokens:,}")
    return table
