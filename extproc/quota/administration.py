"""What operators do with a tenant's quota: look at it, give, correct, and account for every charge.

Rules this module keeps:

* Nothing is overwritten. What an operator gives or takes is a transaction with a reason, in the
  period of now; under the same id it happens once.
* A statement says of each charge which exchange it was for, how that ended, and what was left then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from extproc.quota import subscriptions
from extproc.quota.booking import CALL, book, issue
from extproc.quota.database import writing
from extproc.quota.errors import QuotaError
from extproc.quota.plans import Plans
from extproc.quota.schema import HoldState, Kind, holds, transactions
from extproc.quota.schema import subscriptions as subscription_table

_s, _t, _h = subscription_table.c, transactions.c, holds.c


class NoSubscriptionError(QuotaError):
    """The tenant has no quota that could be shown."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A tenant's quota in one period; instants in milliseconds since 1970, amounts in tokens.

    Attributes:
        id: of the subscription.
        tenant, plan: whose, and by which plan.
        starts_at, ends_at: the period.
        total: given in this period in all: quota, grants, bonuses.
        used: charged and not given back.
        available: what is left; under 0 where it is overdrawn.
        held: what calls under way may cost at most.
    """

    id: int
    tenant: str
    plan: str
    starts_at: int
    ends_at: int
    total: int
    used: int
    available: int
    held: int


@dataclass(frozen=True, slots=True)
class Line:
    """One transaction on a statement.

    Attributes:
        at: when, in milliseconds since 1970.
        kind: what it was for.
        exchange: of a charge: the id that the reply and the logs carry; else "".
        outcome: of a charge: how the exchange ended; else "".
        estimated: the engine reported no usage.
        tokens: added to what is available; under 0 for a charge.
        balance: what was available after it.
        note: the reason, the plan or the campaign.
    """

    at: int
    kind: Kind
    exchange: str
    outcome: str
    estimated: bool
    tokens: int
    balance: int
    note: str


def show(engine: Engine, plans: Plans, tenant: str, now: int) -> Balance:
    """Return a tenant's quota in the period that ``now`` lies in.

    Raises:
        NoSubscriptionError: it has no plan with a quota, and never had.
    """
    with engine.connect() as connection:
        found = _balance(connection, tenant, now)
    if found is not None:
        return found
    plan = plans.of(tenant)
    if plan is None:
        raise NoSubscriptionError(f"{tenant} has no plan with a quota")
    period = plan.period(now / 1000)
    starts, ends = 1000 * period.starts, 1000 * period.ends
    return Balance(0, tenant, plan.name, starts, ends, plan.tokens, 0, plan.tokens, 0)


def give(
    engine: Engine,
    plans: Plans,
    tenant: str,
    kind: Kind,
    tokens: int,
    ident: str,
    note: str,
    now: int,
) -> tuple[Balance, bool]:
    """Add tokens to what a tenant has in the period of ``now``, or take them where under 0.

    Args:
        engine: of the ledger.
        plans: as configured.
        tenant: whose.
        kind: `Kind.GRANT` or `Kind.ADJUST`.
        tokens: how many.
        ident: under the same one it happens once.
        note: the reason.
        now: in milliseconds since 1970.

    Returns:
        The balance, and whether it has changed: False where ``ident`` was there already.

    Raises:
        NoSubscriptionError: it has no plan with a quota, and never had.
    """
    show(engine, plans, tenant, now)
    with writing(engine) as connection:
        key = f"{kind.value}:{ident}"
        spans = subscriptions.find(connection, plans, [(tenant, "", now)], now)
        changed = book(
            connection, [issue(key, spans[tenant, now].id, kind, now, tokens, note)]
        ) == {key}
    return show(engine, plans, tenant, now), changed


def _balance(connection: Connection, tenant: str, now: int) -> Balance | None:
    held = (
        sa.select(sa.func.coalesce(sa.func.sum(_h.tokens), 0))
        .where(_h.subscription_id == _s.id, _h.state == HoldState.PENDING.value)
        .scalar_subquery()
    )
    row = connection.execute(
        sa.select(
            _s.id,
            _s.tenant,
            _s.plan,
            _s.starts_at,
            _s.ends_at,
            -_s.issued,
            _s.used,
            _s.available,
            held,
        ).where(_s.tenant == tenant, _s.starts_at <= now, _s.ends_at > now)
    ).one_or_none()
    return None if row is None else Balance(*row[:-1], held=int(row[-1]))


def statement(connection: Connection, subscription: int) -> Iterator[Line]:
    """Yield all transactions of a subscription, oldest first."""
    rows = connection.execution_options(yield_per=1000).execute(
        sa.select(_t.at, _t.kind, _t.key, _t.outcome, _t.estimated, _t.available, _t.note)
        .where(_t.subscription_id == subscription)
        .order_by(_t.id)
    )
    balance = 0
    for row in rows:
        balance += row.available
        is_call = row.kind == Kind.CHARGE.value
        yield Line(
            at=row.at,
            kind=Kind(row.kind),
            exchange=row.key.removeprefix(CALL) if is_call else "",
            outcome=row.outcome or "",
            estimated=row.estimated,
            tokens=row.available,
            balance=balance,
            note=row.note,
        )
