"""The steps that make the ledger's tables, each once and for ever; Alembic runs them."""
