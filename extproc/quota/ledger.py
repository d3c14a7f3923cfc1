"""The ledger: what came of holds, what is charged, what remains.

Rules this module keeps:

* A hold is PENDING, then CAPTURED or RELEASED. One conditional update decides which, and it alone
  decides whether a charge is written, so each exchange is charged once or not at all, however
  often its records arrive and whoever else writes.
* Everything of one batch is in one commit.
* A process that starts has no call in flight: its outbox's pending holds are released. So are those
  of an outbox that has not been heard of for `ABANDONED_SECONDS`.
* All of it blocks: it is called in the ledger's own thread, never in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from extproc.quota import booking, subscriptions
from extproc.quota.booking import CALL, Posting, insert
from extproc.quota.database import migrate, writing
from extproc.quota.plans import Plans
from extproc.quota.ports import Hold, Movement, Settlement
from extproc.quota.schema import HoldState, Kind, holds, owners, transactions
from extproc.quota.schema import subscriptions as subscription_table

ABANDONED_SECONDS = 3600
"""After so long without a sign of life, an outbox's pending holds are released by others."""
KEEP_HOLDS_SECONDS = 86_400
"""How long settled holds are kept: until then a record that arrives again changes nothing. A charge
is refused for ever by its key."""
ROLL_AT_ONCE = 5000
"""Subscriptions that are renewed in one commit."""

_h, _t, _s = holds.c, transactions.c, subscription_table.c


@dataclass(frozen=True, slots=True)
class Started:
    """A process has opened its outbox: no call of the one before it is still running."""

    at: float


Record = Hold | Settlement | Started


class Ledger:
    """One process's way to the ledger; `open` comes first.

    Args:
        engine: from `extproc.quota.database.open_database`.
        plans: as configured.
        clock: returns Unix time in seconds.
    """

    def __init__(self, engine: Engine, plans: Plans, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._plans = plans
        self._owner = ""
        self._clock = clock

    def open(self, owner: str) -> None:
        """Make the tables where need be, renew what is over, and follow the configured plans.

        Args:
            owner: the name of this process's outbox, unique among all that share the ledger.
        """
        self._owner = owner
        migrate(self._engine)
        self.roll()
        self.follow(self._plans)

    def follow(self, plans: Plans) -> None:
        """Go by these plans from now on; what a subscription has left changes with its plan."""
        self._plans = plans
        with writing(self._engine) as connection:
            subscriptions.follow_plans(connection, plans, self._now())

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def apply(self, records: Sequence[Record]) -> None:
        """Write what happened, in its order; writing it again changes nothing."""
        with writing(self._engine) as connection:
            self._sign_of_life(connection)
            run: list[Hold | Settlement] = []
            for record in records:
                if isinstance(record, Started):
                    self._settle(connection, run)
                    run = []
                    _release(connection, _h.owner == self._owner, round(1000 * record.at))
                else:
                    run.append(record)
            self._settle(connection, run)

    def roll(self) -> None:
        """Close and renew all subscriptions whose period is over."""
        while True:
            with writing(self._engine) as connection:
                if subscriptions.roll(connection, self._plans, self._now(), ROLL_AT_ONCE) == 0:
                    return

    def next_end(self) -> float | None:
        """Return when the next period is over, in seconds since 1970; None where there is none."""
        with self._engine.connect() as connection:
            ends = connection.scalar(sa.select(sa.func.min(_s.ends_at)).where(sa.not_(_s.closed)))
        return None if ends is None else ends / 1000

    def sweep(self) -> None:
        """Say that this outbox lives, release what dead ones held, forget old settled holds."""
        now = self._now()
        with writing(self._engine) as connection:
            self._sign_of_life(connection)
            living = sa.select(owners.c.id).where(owners.c.seen_at > now - 1000 * ABANDONED_SECONDS)
            _release(connection, _h.owner.not_in(living), now)
            connection.execute(
                sa.delete(holds).where(
                    _h.state != HoldState.PENDING.value,
                    _h.settled_at < now - 1000 * KEEP_HOLDS_SECONDS,
                )
            )

    def remaining(self) -> tuple[Mapping[str, int], int]:
        """Return what is available to tenants, and the last transaction that is counted in it."""
        with self._engine.connect() as connection:
            last = connection.scalar(sa.select(sa.func.max(_t.id))) or 0
            return subscriptions.remaining(connection, self._now()), last

    def movements(self, after: int, limit: int) -> tuple[list[Movement], int]:
        """Return what others have moved after a transaction, and the last one looked at."""
        with self._engine.connect() as connection:
            rows = connection.execute(
                _MOVED, {"after": after, "owner": self._owner, "count": limit}
            )
            found = rows.all()
        moved = [
            Movement(row.key, row.tenant, row.available, row.kind == Kind.CHARGE.value)
            for row in found
        ]
        return moved, found[-1].id if found else after

    def _now(self) -> int:
        return round(1000 * self._clock())

    def _sign_of_life(self, connection: Connection) -> None:
        seen = {"id": self._owner, "seen_at": self._now()}
        statement = insert(connection, owners).values(seen)
        connection.execute(statement.on_conflict_do_update(index_elements=[owners.c.id], set_=seen))

    def _settle(self, connection: Connection, run: Sequence[Hold | Settlement]) -> None:
        """Write holds and settlements between which nothing else happened."""
        opened: dict[str, Hold | Settlement] = {}
        ended: dict[str, Settlement] = {}
        for record in run:
            opened.setdefault(record.id, record)
            if isinstance(record, Settlement):
                ended.setdefault(record.id, record)
        if not opened:
            return
        now = self._now()
        places = subscriptions.find(
            connection,
            self._plans,
            [_place(each) for each in chain(opened.values(), ended.values())],
            now,
        )
        _open_holds(connection, self._owner, opened, places)
        charged = {key for key, each in ended.items() if each.tokens > 0}
        captured = _end_holds(connection, charged, HoldState.CAPTURED, now)
        _end_holds(connection, ended.keys() - charged, HoldState.RELEASED, now)
        spans = {key: places[ended[key].tenant, _milliseconds(ended[key].at)] for key in captured}
        charges = [_charge(ended[key], spans[key].id, self._owner) for key in sorted(captured)]
        written = booking.book(connection, charges)
        # What a closed period had left has lapsed already.
        late = [each for each in charges if each.key in written and spans[_call(each)].closed]
        booking.book(
            connection,
            [
                subscriptions.lapse(f"lapse:{each.key}", each.subscription, now, each.available)
                for each in late
            ],
        )


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds // 1)


def _place(record: Hold | Settlement) -> tuple[str, str, int]:
    return record.tenant, record.plan, _milliseconds(record.at)


def _open_holds(
    connection: Connection,
    owner: str,
    opened: Mapping[str, Hold | Settlement],
    places: Mapping[tuple[str, int], subscriptions.Span],
) -> None:
    rows = [
        {
            "id": key,
            "subscription_id": places[record.tenant, _milliseconds(record.at)].id,
            "owner": owner,
            "tokens": record.tokens,
            "state": HoldState.PENDING.value,
            "opened_at": _milliseconds(record.at),
        }
        for key, record in opened.items()
    ]
    connection.execute(
        insert(connection, holds).on_conflict_do_nothing(index_elements=[_h.id]), rows
    )


def _end_holds(connection: Connection, keys: set[str], state: HoldState, now: int) -> set[str]:
    """End those of the holds that are pending, and return which those were."""
    ended: set[str] = set()
    for some in _chunks(sorted(keys)):
        ended.update(
            connection.scalars(
                sa.update(holds)
                .where(_h.id.in_(some), _h.state == HoldState.PENDING.value)
                .values(state=state.value, settled_at=now)
                .returning(_h.id)
            )
        )
    return ended


def _chunks(keys: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _release(connection: Connection, whose: sa.ColumnElement[bool], now: int) -> None:
    connection.execute(
        sa.update(holds)
        .where(_h.state == HoldState.PENDING.value, whose)
        .values(state=HoldState.RELEASED.value, settled_at=now)
    )


def _call(charge: Posting) -> str:
    return charge.key.removeprefix(CALL)


def _charge(settlement: Settlement, subscription: int, owner: str) -> Posting:
    return Posting(
        key=f"{CALL}{settlement.id}",
        subscription=subscription,
        kind=Kind.CHARGE,
        at=_milliseconds(settlement.at),
        available=-settlement.tokens,
        used=settlement.tokens,
        owner=owner,
        outcome=settlement.outcome.value,
        estimated=settlement.estimated,
    )


_MOVED = (
    sa.select(_t.id, _t.key, _t.kind, _t.available, _s.tenant)
    .join(subscription_table, _t.subscription_id == _s.id)
    .where(
        _t.id > sa.bindparam("after"),
        _t.available != 0,
        # Everybody takes the plan's quota for granted until a first period is over.
        _t.kind != Kind.OPENING.value,
        sa.or_(_t.owner.is_(None), _t.owner != sa.bindparam("owner")),
    )
    .order_by(_t.id)
    .limit(sa.bindparam("count"))
)
