"""Compensation: what every subscription gets after a bad day, once per campaign.

Rules this module keeps:

* For each subscription that is valid at the campaign's moment: where less than ``below`` of the total
  is used, what is used becomes 0; else ``bonus`` of the total is added. The total is what the period
  has been given in all. Shares are rounded up to a token.
* A campaign's id happens once. Applied again it goes on where it was stopped, with the moment and
  the shares that it began with, and changes nothing where it is done.
* Each change is a transaction of the ledger, with the campaign in its note.
* It is set-based, batch by batch: a batch, its sums and how far the campaign has come are one commit.
  Between batches, charges get their turn.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from extproc.quota.booking import ACCOUNTS, insert
from extproc.quota.database import writing
from extproc.quota.errors import QuotaError
from extproc.quota.schema import Kind, campaigns, subscriptions, transactions

BATCH = 20_000
"""Ids of subscriptions that are looked at in one commit."""
PARTS = 10_000
"""Shares are whole numbers of this many parts."""

_s, _t, _c = subscriptions.c, transactions.c, campaigns.c


class CampaignError(QuotaError):
    """The campaign cannot be applied as it was asked for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who gets what; both in parts of `PARTS` of the total, ``below`` 0..1 and ``bonus`` 0..10."""

    below: int
    bonus: int

    @classmethod
    def of(cls, below: float, bonus: float) -> Rule:
        """Return the rule of two shares.

        Raises:
            CampaignError: a share is out of range or finer than a hundredth of a per cent.
        """
        parts = []
        for name, share, most in (("below", below, 1.0), ("bonus", bonus, 10.0)):
            whole = round(share * PARTS)
            if not 0 <= share <= most or abs(whole - share * PARTS) > 1e-6:
                raise CampaignError(f"{name} must be 0 to {most:g}, to a hundredth of a per cent")
            parts.append(whole)
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a campaign is, and what it has done; tokens and numbers of subscriptions.

    Attributes:
        done, total: ids of subscriptions looked at and to look at: shares of the way, no counts.
        resets, reset_tokens: whose use became 0, and by how much.
        bonuses, bonus_tokens: who got more, and how much.
        untouched: who had used nothing, or whose total is 0.
    """

    done: int
    total: int
    resets: int
    reset_tokens: int
    bonuses: int
    bonus_tokens: int
    untouched: int


@dataclass(frozen=True, slots=True)
class Affected:
    """What one subscription would get; ``kind`` is ``reset`` or ``bonus``, amounts in tokens."""

    tenant: str
    plan: str
    total: int
    used: int
    kind: str
    tokens: int


_SUMS = ("resets", "reset_tokens", "bonuses", "bonus_tokens", "untouched")


def preview(engine: Engine, rule: Rule, now: int) -> Progress:
    """Return what a campaign would do at ``now``, in milliseconds since 1970; nothing is changed."""
    resets, bonuses = _is_reset(rule), _is_bonus(rule)
    zero, one = sa.literal(0), sa.literal(1)
    with engine.connect() as connection:
        row = connection.execute(
            sa.select(
                _total(sa.case((resets, one), else_=zero)),
                _total(sa.case((resets, _s.used), else_=zero)),
                _total(sa.case((bonuses, one), else_=zero)),
                _total(sa.case((bonuses, _share(rule.bonus)), else_=zero)),
                _total(sa.case((sa.or_(resets, bonuses), zero), else_=one)),
            ).where(_valid(now))
        ).one()
    return Progress(0, 0, *(int(each) for each in row))


def rows(engine: Engine, rule: Rule, now: int, limit: int) -> list[Affected]:
    """Return the first subscriptions, by tenant, that a campaign at ``now`` would change."""
    resets, bonuses = _is_reset(rule), _is_bonus(rule)
    with engine.connect() as connection:
        found = connection.execute(
            sa.select(
                _s.tenant,
                _s.plan,
                -_s.issued,
                _s.used,
                sa.case((resets, Kind.RESET.value), else_=Kind.BONUS.value),
                sa.case((resets, _s.used), else_=_share(rule.bonus)),
            )
            .where(_valid(now), sa.or_(resets, bonuses))
            .order_by(_s.tenant)
            .limit(limit)
        )
        return [Affected(*row) for row in found]


def apply(engine: Engine, ident: str, rule: Rule, now: int) -> Generator[Progress, None, None]:
    """Apply a campaign, or what is left of it, and tell how far it is after each batch.

    Raises:
        CampaignError: a campaign of this id was begun with another rule.
    """
    with writing(engine) as connection:
        state = _begin(connection, ident, rule, now)
    while True:
        yield _progress(state)
        if state["cursor"] >= state["last"]:
            return
        with writing(engine) as connection:
            state = _batch(connection, ident, rule)


def _begin(connection: Connection, ident: str, rule: Rule, now: int) -> Any:
    last = connection.scalar(sa.select(sa.func.max(_s.id))) or 0
    values = {"id": ident, "moment": now, "below": rule.below, "bonus": rule.bonus, "cursor": 0}
    connection.execute(
        insert(connection, campaigns)
        .values(**values, last=last)
        .on_conflict_do_nothing(index_elements=[_c.id])
    )
    state = _state(connection, ident)
    if (state["below"], state["bonus"]) != (rule.below, rule.bonus):
        raise CampaignError(
            f"campaign {ident} was begun with --below {state['below'] / PARTS:g} "
            f"--bonus {state['bonus'] / PARTS:g}: say the same, or give it another id"
        )
    return state


def _state(connection: Connection, ident: str) -> Any:
    return connection.execute(sa.select(campaigns).where(_c.id == ident)).mappings().one()


def _progress(state: Any) -> Progress:
    return Progress(state["cursor"], state["last"], *(state[name] for name in _SUMS))


def _batch(connection: Connection, ident: str, rule: Rule) -> Any:
    state = _state(connection, ident)  # another process may be at the same campaign
    upto = min(state["last"], state["cursor"] + BATCH)
    some = sa.and_(_s.id > state["cursor"], _s.id <= upto, _valid(state["moment"]))
    before = connection.scalar(sa.select(sa.func.max(_t.id))) or 0
    looked_at = connection.scalar(sa.select(sa.func.count()).where(some)) or 0
    zero, more = sa.literal(0), _share(rule.bonus)
    _write(connection, state, Kind.RESET, sa.and_(some, _is_reset(rule)), (zero, _s.used, -_s.used))
    _write(connection, state, Kind.BONUS, sa.and_(some, _is_bonus(rule)), (-more, more, zero))
    connection.execute(
        sa.update(subscriptions)
        # The ids once more: without them PostgreSQL would look at all subscriptions each time.
        .where(_t.id > before, _t.subscription_id == _s.id, _s.id > state["cursor"], _s.id <= upto)
        .values({name: _s[name] + _t[name] for name in ACCOUNTS})
    )
    made = connection.execute(
        sa.select(_t.kind, sa.func.count(), _total(_t.available))
        .where(_t.id > before)
        .group_by(_t.kind)
    )
    sums = {kind: (count, int(tokens)) for kind, count, tokens in made}
    resets, reset_tokens = sums.get(Kind.RESET.value, (0, 0))
    bonuses, bonus_tokens = sums.get(Kind.BONUS.value, (0, 0))
    connection.execute(
        sa.update(campaigns)
        .where(_c.id == ident)
        .values(
            cursor=upto,
            resets=_c.resets + resets,
            reset_tokens=_c.reset_tokens + reset_tokens,
            bonuses=_c.bonuses + bonuses,
            bonus_tokens=_c.bonus_tokens + bonus_tokens,
            untouched=_c.untouched + looked_at - resets - bonuses,
        )
    )
    return _state(connection, ident)


def _write(
    connection: Connection,
    state: Any,
    kind: Kind,
    whose: sa.ColumnElement[bool],
    amounts: tuple[sa.ColumnElement[int], ...],
) -> None:
    """Write a transaction for each subscription that is meant."""
    key = sa.literal(f"campaign:{state['id']}:") + sa.cast(_s.id, sa.Text)
    rows = sa.select(
        key, _s.id, sa.literal(kind.value), sa.literal(state["moment"], sa.BigInteger), *amounts,
        sa.literal(f"campaign {state['id']}"),
    ).where(whose)  # fmt: skip
    names = ["key", "subscription_id", "kind", "at", *ACCOUNTS, "note"]
    connection.execute(sa.insert(transactions).from_select(names, rows))


# The rule, in SQL; integers all the way, and no product that could overflow.


def _valid(moment: int) -> sa.ColumnElement[bool]:
    return sa.and_(_s.starts_at <= moment, _s.ends_at > moment, sa.not_(_s.closed))


def _share(parts: int) -> sa.ColumnElement[int]:
    """Return ``parts`` / `PARTS` of the total, rounded up."""
    total = -_s.issued
    rest = (total % PARTS) * parts
    return (total // PARTS) * parts + (rest + PARTS - 1) // PARTS


def _is_reset(rule: Rule) -> sa.ColumnElement[bool]:
    return sa.and_(_s.used > 0, _s.used < _share(rule.below))


def _is_bonus(rule: Rule) -> sa.ColumnElement[bool]:
    return sa.and_(_s.used >= _share(rule.below), _share(rule.bonus) > 0)


def _total(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(column), 0)
