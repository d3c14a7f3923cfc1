"""What operators look through: tenants, the entries of their accounts, campaigns. Nothing is changed.

Rule this module keeps: what is returned at once is bounded by ``limit``, however much there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Engine, RowMapping

from extproc.quota.administration import Line
from extproc.quota.booking import CALL
from extproc.quota.schema import Kind, campaigns, subscriptions, transactions

_s, _t, _c = subscriptions.c, transactions.c, campaigns.c


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a statement with its number, by which others are found that came before it."""

    id: int
    line: Line


def tenants(engine: Engine, *, prefix: str, after: str, limit: int) -> list[str]:
    """Return names that have or had a quota, in the order of their code points."""
    name: sa.ColumnElement[str] = _s.tenant
    if engine.dialect.name == "postgresql":
        name = sa.collate(name, "C")
    with engine.connect() as connection:
        return list(
            connection.scalars(
                sa.select(name)
                .where(sa.func.substr(_s.tenant, 1, len(prefix)) == prefix, name > after)
                .distinct()
                .order_by(name)
                .limit(limit)
            )
        )


def entries(engine: Engine, subscription: int, *, before: int | None, limit: int) -> list[Entry]:
    """Return the transactions of a subscription, the newest first.

    Args:
        engine: of the ledger.
        subscription: its id.
        before: only those that came before this one; None: all.
        limit: at most so many.
    """
    whose = _t.subscription_id == subscription
    with engine.connect() as connection:
        left = connection.scalar(sa.select(_s.available).where(_s.id == subscription)) or 0
        if before is not None:
            newer = sa.select(sa.func.coalesce(sa.func.sum(_t.available), 0))
            left -= int(connection.scalar(newer.where(whose, _t.id >= before)) or 0)
            whose = sa.and_(whose, _t.id < before)
        rows = connection.execute(
            sa.select(transactions).where(whose).order_by(_t.id.desc()).limit(limit)
        ).mappings()
        found = []
        for row in rows:
            found.append(Entry(row["id"], _line(row, left)))
            left -= row["available"]
        return found


def _line(row: RowMapping, balance: int) -> Line:
    is_call = row["kind"] == Kind.CHARGE.value
    return Line(
        at=row["at"],
        kind=Kind(row["kind"]),
        exchange=row["key"].removeprefix(CALL) if is_call else "",
        outcome=row["outcome"] or "",
        estimated=row["estimated"],
        tokens=row["available"],
        balance=balance,
        note=row["note"],
    )


def begun(engine: Engine, *, limit: int, ident: str | None = None) -> Sequence[RowMapping]:
    """Return campaigns that were begun, by their moment, the last first; or the one of this id."""
    chosen = sa.select(campaigns).order_by(_c.moment.desc(), _c.id).limit(limit)
    if ident is not None:
        chosen = chosen.where(_c.id == ident)
    with engine.connect() as connection:
        return connection.execute(chosen).mappings().all()
