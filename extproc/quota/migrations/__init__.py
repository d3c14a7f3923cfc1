"""The steps that make the ledger's tables, each once and for ever; Alembic runs them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from extproc.quota.errors import LedgerUnavailableError


def upgrade(connection: Connection, revision: str | None) -> None:
    """Take the steps after a revision, in the connection's transaction.

    Raises:
        LedgerUnavailableError: a newer Tidegate has made the tables.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise LedgerUnavailableError(
            f"a newer Tidegate has made this ledger's tables (revision {revision}): install that one"
        )
    command.upgrade(config, "head")
