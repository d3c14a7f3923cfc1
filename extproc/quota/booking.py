"""Writing transactions: the only place where balances change, beside a campaign's set-based twin.

Rules this module keeps:

* A transaction is written once, however often it arrives: its key decides.
* Balances change with the transaction that changes them, in the same commit, by what was really
  written.
* Everything here runs inside `extproc.quota.database.writing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from extproc.quota.schema import Kind, subscriptions, transactions

CALL = "call:"
"""Before the id of the exchange: the key of its charge."""
ACCOUNTS = ("issued", "available", "used")


@dataclass(frozen=True, slots=True)
class Posting:
    """One transaction to be written: what it adds to each account; the three add up to 0.

    Attributes:
        key: makes it happen once, for ever.
        subscription: its id.
        kind: what it is for.
        at: when it happened, in milliseconds since 1970.
        issued, available, used: added to each account, in tokens.
        owner: of a charge: the outbox that it came through.
        outcome: of a charge: how the exchange ended.
        estimated: the engine reported no usage.
        note: for people.
    """

    key: str
    subscription: int
    kind: Kind
    at: int
    issued: int = 0
    available: int = 0
    used: int = 0
    owner: str | None = None
    outcome: str | None = None
    estimated: bool = False
    note: str = ""


def issue(key: str, subscription: int, kind: Kind, at: int, tokens: int, note: str = "") -> Posting:
    """Return the posting that gives tokens to a subscription, or takes them where under 0."""
    return Posting(key, subscription, kind, at, issued=-tokens, available=tokens, note=note)


def insert(connection: Connection, table: sa.Table) -> Any:
    """Return an INSERT that knows ON CONFLICT, in the words of the connection's database."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    return dialect.insert(table)


def book(connection: Connection, postings: Sequence[Posting]) -> set[str]:
    """Write the postings that are not written yet, and return their keys."""
    postings = tuple({each.key: each for each in postings}.values())
    if not postings:
        return set()
    statement = (
        insert(connection, transactions)
        .on_conflict_do_nothing(index_elements=[transactions.c.key])
        .returning(transactions.c.key)
    )
    written = set(connection.scalars(statement, [_row(each) for each in postings]))
    _project(connection, (each for each in postings if each.key in written))
    return written


def _row(posting: Posting) -> dict[str, Any]:
    return {
        "key": posting.key,
        "subscription_id": posting.subscription,
        "kind": posting.kind.value,
        "at": posting.at,
        "issued": posting.issued,
        "available": posting.available,
        "used": posting.used,
        "owner": posting.owner,
        "outcome": posting.outcome,
        "estimated": posting.estimated,
        "note": posting.note,
    }


def _project(connection: Connection, written: Iterable[Posting]) -> None:
    sums: dict[int, tuple[int, int, int]] = {}
    for each in written:
        issued, available, used = sums.get(each.subscription, (0, 0, 0))
        sums[each.subscription] = (
            issued + each.issued, available + each.available, used + each.used,
        )  # fmt: skip
    if sums:
        connection.execute(
            _ADD,
            [
                {"subscription": key, "add_issued": i, "add_available": a, "add_used": u}
                for key, (i, a, u) in sorted(sums.items())
            ],
        )


_ADD = (
    sa.update(subscriptions)
    .where(subscriptions.c.id == sa.bindparam("subscription"))
    .values(
        issued=subscriptions.c.issued + sa.bindparam("add_issued"),
        available=subscriptions.c.available + sa.bindparam("add_available"),
        used=subscriptions.c.used + sa.bindparam("add_used"),
    )
)


def rebuild(connection: Connection) -> int:
    """Make all balances anew from the transactions; return how many were wrong."""
    sums = (
        sa.select(
            subscriptions.c.id,
            *(
                sa.cast(
                    sa.func.coalesce(sa.func.sum(transactions.c[name]), 0), sa.BigInteger
                ).label(name)
                for name in ACCOUNTS
            ),
        )
        .select_from(subscriptions.outerjoin(transactions))
        .group_by(subscriptions.c.id)
        .subquery()
    )
    wrong = connection.execute(
        sa.select(sums)
        .join(subscriptions, subscriptions.c.id == sums.c.id)
        .where(sa.or_(*(subscriptions.c[name] != sums.c[name] for name in ACCOUNTS)))
    ).all()
    for row in wrong:
        connection.execute(
            sa.update(subscriptions)
            .where(subscriptions.c.id == row.id)
            .values(issued=row.issued, available=row.available, used=row.used)
        )
    return len(wrong)
