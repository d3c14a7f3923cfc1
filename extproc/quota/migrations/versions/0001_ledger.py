"""The ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PENDING, _SETTLED = sa.text("state = 'pending'"), sa.text("state <> 'pending'")
_OPEN = sa.text("NOT closed")


def upgrade() -> None:
    """Make the tables, the view of entries, and what keeps transactions as they are."""
    op.create_table(
        "subscriptions",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("quota", sa.BigInteger, nullable=False),
        sa.Column("starts_at", sa.BigInteger, nullable=False),
        sa.Column("ends_at", sa.BigInteger, nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("issued", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("available", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("used", sa.BigInteger, nullable=False, server_default="0"),
        sa.UniqueConstraint("tenant", "starts_at", name="subscriptions_tenant_starts_at"),
        sa.CheckConstraint("issued + available + used = 0", name="subscriptions_balanced"),
        sa.CheckConstraint("starts_at < ends_at", name="subscriptions_span"),
    )
    op.create_index(
        "subscriptions_open", "subscriptions", ["ends_at"],
        sqlite_where=_OPEN, postgresql_where=_OPEN,
    )  # fmt: skip
    op.create_table(
        "holds",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column(
            "subscription_id", sa.BigInteger, sa.ForeignKey("subscriptions.id"), nullable=False
        ),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("opened_at", sa.BigInteger, nullable=False),
        sa.Column("settled_at", sa.BigInteger),
        sa.CheckConstraint("state IN ('pending', 'captured', 'released')", name="holds_state"),
    )
    op.create_index(
        "holds_pending", "holds", ["owner"], sqlite_where=_PENDING, postgresql_where=_PENDING
    )
    op.create_index(
        "holds_settled", "holds", ["settled_at"], sqlite_where=_SETTLED, postgresql_where=_SETTLED
    )
    op.create_table(
        "transactions",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column(
            "subscription_id", sa.BigInteger, sa.ForeignKey("subscriptions.id"), nullable=False
        ),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("issued", sa.BigInteger, nullable=False),
        sa.Column("available", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("note", sa.Text, nullable=False, server_default=""),
        sa.CheckConstraint("issued + available + used = 0", name="transactions_balanced"),
    )
    op.create_index("transactions_subscription", "transactions", ["subscription_id", "id"])
    op.create_table(
        "owners",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "campaigns",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("moment", sa.BigInteger, nullable=False),
        sa.Column("below", sa.Integer, nullable=False),
        sa.Column("bonus", sa.Integer, nullable=False),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
            for name in ("resets", "reset_tokens", "bonuses", "bonus_tokens", "untouched")
        ),
    )
    op.execute(_ENTRIES)
    for statement in _KEEP[op.get_bind().dialect.name]:
        op.execute(statement)


_ENTRIES = """\
CREATE VIEW entries AS
SELECT id AS transaction_id, subscription_id, 'issued' AS account, issued AS amount
FROM transactions WHERE issued <> 0
UNION ALL SELECT id, subscription_id, 'available', available FROM transactions WHERE available <> 0
UNION ALL SELECT id, subscription_id, 'used', used FROM transactions WHERE used <> 0
"""

_KEEP = {
    "sqlite": [
        f"CREATE TRIGGER transactions_no_{verb} BEFORE {verb} ON transactions "
        "BEGIN SELECT RAISE(ABORT, 'transactions are only ever added'); END"
        for verb in ("update", "delete")
    ],
    "postgresql": [
        (
            "CREATE FUNCTION transactions_keep() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'transactions are only ever added'; END $$"
        ),
        (
            "CREATE TRIGGER transactions_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON transactions "
            "FOR EACH STATEMENT EXECUTE FUNCTION transactions_keep()"
        ),
    ],
}
