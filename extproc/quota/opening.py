"""From a configuration to its ledger and outbox; the parts that speak to a database, imported late.

Rule this module keeps: nothing is opened here. `Outbox.open` touches the file, `Outbox.run` the
ledger; so a configuration can be wired anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from extproc.config import Config
from extproc.quota.database import open_database
from extproc.quota.journal import Journal
from extproc.quota.ledger import Ledger
from extproc.quota.outbox import Outbox
from extproc.quota.plans import quota_plans


def make_outbox(config: Config, clock: Callable[[], float]) -> Outbox:
    """Return the outbox of a configuration, not yet open.

    Raises:
        LedgerUnavailableError: the database's driver is not installed.
    """
    state = config.state
    ledger = Ledger(open_database(state.database), quota_plans(config), clock)
    return Outbox(Journal(state.outbox, state.outbox_limit), ledger, clock)
