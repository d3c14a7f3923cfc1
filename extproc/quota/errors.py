"""What keeps quotas from being kept, in words that say what to do; imports no database."""

from __future__ import annotations


class QuotaError(RuntimeError):
    """The ledger or the outbox cannot be used."""


class LedgerUnavailableError(QuotaError):
    """The ledger cannot be opened."""


class JournalError(QuotaError):
    """The outbox's file cannot be used."""
