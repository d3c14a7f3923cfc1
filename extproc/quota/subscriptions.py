"""A tenant's plan for one period: opened when it is first needed, renewed, changed, closed.

Rules this module keeps:

* A tenant's subscriptions lie end to end and never overlap: an instant belongs to one at most.
* What happened in a period is written to that period, also when it is heard of later.
* At the end of a period what is left lapses and what is overdrawn is forgiven; the next begins with
  the plan's whole quota.
* When a plan changes, the rest of the period has the new plan's share of it instead of the old
  plan's, to the token: what was bought for the time that has passed stays. Where the two plans'
  periods end at different instants, the old period ends at the change, what is left of it lapses,
  and a new one begins, up to where the new plan's calendar ends it, with that share.
* Everything here runs inside `extproc.quota.database.writing`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from extproc.quota.booking import Posting, book, issue
from extproc.quota.periods import PeriodKind
from extproc.quota.plans import Plans, QuotaPlan
from extproc.quota.schema import Kind, subscriptions

_NO_PLAN = QuotaPlan("", 0, PeriodKind.MONTH, ZoneInfo("UTC"))
"""Of tenants whose plan is gone when a charge of theirs arrives."""
_s = subscriptions.c


class Span(NamedTuple):
    """Where a subscription lies in time; instants in milliseconds."""

    id: int
    tenant: str
    starts_at: int
    ends_at: int
    closed: bool


class _Current(NamedTuple):
    """A subscription as its plan sees it."""

    id: int
    tenant: str
    plan: str
    quota: int
    starts_at: int
    ends_at: int
    available: int


def find(
    connection: Connection, plans: Plans, wanted: Collection[tuple[str, str, int]], now: int
) -> dict[tuple[str, int], Span]:
    """Return the subscription of each tenant at each instant, opening those that are missing.

    Args:
        connection: see the module's rules.
        plans: as configured.
        wanted: tenant, name of its plan, and instant in milliseconds.
        now: in milliseconds.
    """
    found: dict[tuple[str, int], Span] = {}
    known = _around(connection, wanted)
    for tenant, plan, at in wanted:
        spans = known.setdefault(tenant, [])
        span = next((each for each in spans if each.starts_at <= at < each.ends_at), None)
        if span is None:
            chosen = plans.plans.get(plan) or plans.of(tenant) or _NO_PLAN
            span = _open(connection, chosen, tenant, at, now)
            spans.append(span)
        found[tenant, at] = span
    return found


def _around(
    connection: Connection, wanted: Collection[tuple[str, str, int]]
) -> dict[str, list[Span]]:
    if not wanted:
        return {}
    instants = [at for _, _, at in wanted]
    rows = connection.execute(
        sa.select(_s.id, _s.tenant, _s.starts_at, _s.ends_at, _s.closed).where(
            _s.tenant.in_({tenant for tenant, _, _ in wanted}),
            _s.ends_at > min(instants),
            _s.starts_at <= max(instants),
        )
    )
    known: dict[str, list[Span]] = {}
    for row in rows:
        known.setdefault(row.tenant, []).append(Span(*row))
    return known


def _open(connection: Connection, plan: QuotaPlan, tenant: str, at: int, now: int) -> Span:
    """Open the subscription that an instant lies in, between those that are there.

    Of a period that is over, only what was used is written: it is opened closed.
    """
    period = plan.period(at / 1000)
    before, after, had = connection.execute(
        sa.select(
            sa.func.max(sa.case((_s.ends_at <= at, _s.ends_at))),
            sa.func.min(sa.case((_s.starts_at > at, _s.starts_at))),
            sa.func.max(_s.quota),
        ).where(_s.tenant == tenant)
    ).one()
    starts = max(1000 * period.starts, before or 0)
    ends = min(1000 * period.ends, after or 1000 * period.ends)
    over = ends <= now
    row = {
        "tenant": tenant,
        "plan": plan.name,
        "quota": 0 if over else plan.tokens,
        "starts_at": starts,
        "ends_at": ends,
        "closed": over,
    }
    span = Span(
        *connection.execute(
            sa.insert(subscriptions)
            .values(row)
            .returning(_s.id, _s.tenant, _s.starts_at, _s.ends_at, _s.closed)
        ).one()
    )
    if not over:
        tokens = plan.rest(period, starts) - plan.rest(period, ends)
        kind = Kind.RENEWAL if had else Kind.OPENING
        book(connection, [issue(f"opening:{span.id}", span.id, kind, at, tokens, plan.name)])
    return span


# The end of periods.


def roll(connection: Connection, plans: Plans, now: int, limit: int) -> int:
    """Close up to ``limit`` subscriptions whose period is over and renew them; return how many."""
    over = connection.execute(
        sa.select(_s.id, _s.tenant, _s.plan, _s.starts_at, _s.ends_at, _s.available)
        .where(sa.not_(_s.closed), _s.ends_at <= now)
        .order_by(_s.ends_at)
        .limit(limit)
    ).all()
    if not over:
        return 0
    _close(connection, [(row.id, row.available, row.ends_at) for row in over])
    lasts = _lasts(connection, {row.tenant for row in over})
    fresh: dict[QuotaPlan, list[str]] = {}
    for tenant, formerly in {row.tenant: row.plan for row in over}.items():
        plan = plans.of(tenant)
        if plan is None and tenant not in plans.unlimited:
            plan = plans.plans.get(formerly)
        if (
            plan is None or lasts[tenant] > now
        ):  # it has a period already, and this was an older one
            continue
        if lasts[tenant] <= 1000 * plan.period(now / 1000).starts:
            fresh.setdefault(plan, []).append(tenant)
        else:
            _open(connection, plan, tenant, now, now)
    for plan, tenants in fresh.items():
        _renew(connection, plan, tenants, now)
    return len(over)


def _lasts(connection: Connection, tenants: Collection[str]) -> dict[str, int]:
    """Return where the last period of each tenant ends."""
    rows = connection.execute(
        sa.select(_s.tenant, sa.func.max(_s.ends_at).label("last"))
        .where(_s.tenant.in_(tenants))
        .group_by(_s.tenant)
    )
    return {row.tenant: row.last for row in rows}


def _renew(connection: Connection, plan: QuotaPlan, tenants: Sequence[str], now: int) -> None:
    """Open whole periods for many tenants at once."""
    period = plan.period(now / 1000)
    starts, ends = 1000 * period.starts, 1000 * period.ends
    rows = [
        {
            "tenant": each,
            "plan": plan.name,
            "quota": plan.tokens,
            "starts_at": starts,
            "ends_at": ends,
        }
        for each in tenants
    ]
    made = connection.scalars(sa.insert(subscriptions).returning(_s.id), rows).all()
    book(
        connection,
        [
            issue(f"opening:{each}", each, Kind.RENEWAL, starts, plan.tokens, plan.name)
            for each in made
        ],
    )


def _close(connection: Connection, ended: Sequence[tuple[int, int, int]]) -> None:
    """Close subscriptions: id, what is left, and when it ended."""
    connection.execute(
        sa.update(subscriptions).where(_s.id.in_([key for key, _, _ in ended])).values(closed=True)
    )
    book(connection, [lapse(f"lapse:{key}", key, at, left) for key, left, at in ended if left])


def lapse(key: str, subscription: int, at: int, left: int) -> Posting:
    """Return the posting that takes back what is left of a period that is over."""
    return issue(key, subscription, Kind.LAPSE, at, -left)


# Changes of plans.


def follow_plans(connection: Connection, plans: Plans, now: int) -> int:
    """Make the open subscriptions what the configuration says; return how many have changed."""
    theirs: sa.ColumnElement[bool] = _s.tenant.in_(plans.tenants.keys() | plans.unlimited)
    if plans.default is not None:  # else tenants that are not configured keep what they were given
        as_default = sa.and_(_s.plan == plans.default.name, _s.quota == plans.default.tokens)
        theirs = sa.or_(theirs, sa.not_(as_default))
    rows = connection.execute(
        sa.select(
            _s.id, _s.tenant, _s.plan, _s.quota, _s.starts_at, _s.ends_at, _s.available
        ).where(sa.not_(_s.closed), _s.starts_at <= now, _s.ends_at > now, theirs)
    ).all()
    changed = 0
    for row in (_Current(*each) for each in rows):
        plan = plans.of(row.tenant)
        if plan is None:
            _cut(connection, row, now)
        elif (row.plan, row.quota) == (plan.name, plan.tokens):
            continue
        elif 1000 * plan.period(now / 1000).ends == row.ends_at:
            _change(connection, row, plan, now)
        else:
            _cut(connection, row, now)
            _open(connection, plan, row.tenant, now, now)
        changed += 1
    return changed + _revive(connection, plans, now)


def _revive(connection: Connection, plans: Plans, now: int) -> int:
    """Open a period for tenants that had one, then no plan, and have one again."""
    idle = connection.scalars(
        sa.select(_s.tenant)
        .group_by(_s.tenant)
        .having(sa.func.max(_s.ends_at) <= now, sa.func.max(_s.quota) > 0)
    ).all()
    chosen = [(tenant, plan) for tenant in idle if (plan := plans.of(tenant)) is not None]
    for tenant, plan in chosen:
        _open(connection, plan, tenant, now, now)
    return len(chosen)


def _change(
    connection: Connection,
    row: _Current,
    plan: QuotaPlan,
    now: int,
) -> None:
    period = plan.period(now / 1000)
    old = QuotaPlan(row.plan, row.quota, plan.kind, plan.zone)
    more = plan.rest(period, now) - old.rest(period, now)
    connection.execute(
        sa.update(subscriptions).where(_s.id == row.id).values(plan=plan.name, quota=plan.tokens)
    )
    note = f"{row.plan} → {plan.name}"
    book(connection, [issue(f"plan:{row.id}:{now}", row.id, Kind.PLAN, now, more, note)])


def _cut(connection: Connection, row: _Current, now: int) -> None:
    """End a period before its time."""
    ends = max(now, row.starts_at + 1)
    connection.execute(sa.update(subscriptions).where(_s.id == row.id).values(ends_at=ends))
    _close(connection, [(row.id, row.available, ends)])


def remaining(connection: Connection, now: int) -> Mapping[str, int]:
    """Return what is available to each tenant that has not just its plan's quota."""
    rows = connection.execute(
        sa.select(_s.tenant, _s.available).where(
            _s.starts_at <= now, _s.ends_at > now, _s.available != _s.quota
        )
    )
    return {row.tenant: row.available for row in rows}
