"""The ledger's tables, as SQLAlchemy Core sees them; `migrations` makes them.

Rules this module keeps:

* Every transaction moves tokens between the three accounts of one subscription, ``issued``,
  ``available`` and ``used``. It is one row with one column per account, and the database itself
  refuses a row whose columns do not add up to 0, and any change or removal of a row. The view
  ``entries`` shows the same as one row per entry.
* A subscription's balances are a projection: the sums over its transactions, column by column.
  ``issued`` is under 0: it is what the plan, grants and bonuses have given.
* A hold moves nothing. It says what a call in flight may come to cost.
* Instants are whole milliseconds since 1970, UTC.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()
_Id = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER numbers itself in SQLite


class HoldState(StrEnum):
    """The life of a hold: PENDING, then one of the others, for ever."""

    PENDING = "pending"
    CAPTURED = "captured"
    RELEASED = "released"


class Kind(StrEnum):
    """What a transaction is for."""

    OPENING = "opening"
    """A period begins: its quota is issued."""
    PLAN = "plan"
    """The plan changed: what the rest of the period has more or less."""
    CHARGE = "charge"
    GRANT = "grant"
    ADJUST = "adjust"
    RESET = "reset"
    """A campaign made what was used 0."""
    BONUS = "bonus"
    """A campaign issued more."""
    RENEWAL = "renewal"
    """The same where the tenant has had another one."""
    LAPSE = "lapse"
    """The period is over: what is left goes back."""


subscriptions = Table(
    "subscriptions",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("quota", BigInteger, nullable=False),  # of the plan, for a whole period
    Column("starts_at", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Column("closed", Boolean, nullable=False, server_default=text("false")),  # what was left lapsed
    Column("issued", BigInteger, nullable=False, server_default="0"),
    Column("available", BigInteger, nullable=False, server_default="0"),
    Column("used", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("tenant", "starts_at", name="subscriptions_tenant_starts_at"),
    CheckConstraint("issued + available + used = 0", name="subscriptions_balanced"),
    CheckConstraint("starts_at < ends_at", name="subscriptions_span"),
    Index(
        "subscriptions_open",
        "ends_at",
        sqlite_where=text("NOT closed"),
        postgresql_where=text("NOT closed"),
    ),
)

holds = Table(
    "holds",
    metadata,
    Column("id", Text, primary_key=True),  # the exchange's
    Column("subscription_id", BigInteger, ForeignKey("subscriptions.id"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("settled_at", BigInteger),
    CheckConstraint("state IN ('pending', 'captured', 'released')", name="holds_state"),
    Index(
        "holds_pending",
        "owner",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "holds_settled",
        "settled_at",
        sqlite_where=text("state <> 'pending'"),
        postgresql_where=text("state <> 'pending'"),
    ),
)

transactions = Table(
    "transactions",
    metadata,
    Column("id", _Id, primary_key=True),  # in the order of the commits
    Column("key", Text, nullable=False, unique=True),  # makes it happen once
    Column("subscription_id", BigInteger, ForeignKey("subscriptions.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("issued", BigInteger, nullable=False),
    Column("available", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("owner", Text),  # of a charge: the Tidegate that served the call
    Column("outcome", Text),  # of a charge: how the exchange ended
    Column("estimated", Boolean, nullable=False, server_default=text("false")),
    Column("note", Text, nullable=False, server_default=""),
    CheckConstraint("issued + available + used = 0", name="transactions_balanced"),
    Index("transactions_subscription", "subscription_id", "id"),
)

owners = Table(
    "owners",
    metadata,
    Column("id", Text, primary_key=True),  # an outbox
    Column("seen_at", BigInteger, nullable=False),
)

campaigns = Table(
    "campaigns",
    metadata,
    Column("id", Text, primary_key=True),
    Column("moment", BigInteger, nullable=False),  # subscriptions that are valid then
    Column("below", Integer, nullable=False),  # both in hundredths of a per cent of the total
    Column("bonus", Integer, nullable=False),
    Column("cursor", BigInteger, nullable=False),  # subscriptions up to this id are done
    Column("last", BigInteger, nullable=False),  # … and this is the last of them
    Column("resets", BigInteger, nullable=False, server_default="0"),
    Column("reset_tokens", BigInteger, nullable=False, server_default="0"),
    Column("bonuses", BigInteger, nullable=False, server_default="0"),
    Column("bonus_tokens", BigInteger, nullable=False, server_default="0"),
    Column("untouched", BigInteger, nullable=False, server_default="0"),
)
