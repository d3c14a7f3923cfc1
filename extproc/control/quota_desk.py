"""The ledger for operators, in a thread of its own: the loop that decides waits for no database.

Rules this module keeps:

* One thing at a time. A database that is gone or slow holds up operators and nobody else.
* Only Tidegates whose plans have quotas import what speaks to a database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from extproc.config import Config
from extproc.quota.errors import QuotaError
from extproc.quota.worker import Worker

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from extproc.quota.administration import Balance
    from extproc.quota.browse import Entry
    from extproc.quota.campaign import Affected, Progress
    from extproc.quota.plans import Plans

T = TypeVar("T")


class LedgerSilentError(QuotaError):
    """The database does not answer."""


def make_quota_desk(config: Config, wall_clock: Callable[[], float]) -> QuotaDesk | None:
    """Return the desk of a configuration, or None where no plan has a quota.

    Raises:
        LedgerUnavailableError: the database's driver is not installed.
    """
    if not any(plan.quota for plan in config.plans.values()):
        return None
    return QuotaDesk(config, wall_clock)


class QuotaDesk:
    """See the module's rules. All methods raise `QuotaError` where the ledger cannot do it."""

    def __init__(self, config: Config, wall_clock: Callable[[], float]) -> None:
        from extproc.quota.database import open_database
        from extproc.quota.plans import quota_plans

        self._engine = open_database(config.state.database)
        self._plans = quota_plans(config)
        self._wall_clock = wall_clock
        self._worker = Worker("control-ledger")

    def follow(self, plans: Plans) -> None:
        """Go by these plans from now on."""
        self._plans = plans

    def close(self) -> None:
        """Let go of the database."""
        self._worker.stop()

    async def names(self, *, prefix: str, after: str, limit: int) -> list[str]:
        """Return the names of tenants that have or had a quota of their own."""
        from extproc.quota import browse

        return await self._do(
            lambda: browse.tenants(self._engine, prefix=prefix, after=after, limit=limit)
        )

    async def balances(
        self, tenants: Sequence[str], at: float | None = None
    ) -> Mapping[str, Balance]:
        """Return what tenants have in the period of a moment; those without a quota are left out."""
        from extproc.quota import administration

        now = self._milliseconds(at)

        def look() -> dict[str, Balance]:
            found = {}
            for tenant in tenants:
                try:
                    found[tenant] = administration.show(self._engine, self._plans, tenant, now)
                except administration.NoSubscriptionError:
                    continue
            return found

        return await self._do(look)

    async def entries(self, subscription: int, *, before: int | None, limit: int) -> list[Entry]:
        """Return what a subscription was given and charged, the newest first."""
        from extproc.quota import browse

        return await self._do(
            lambda: browse.entries(self._engine, subscription, before=before, limit=limit)
        )

    async def adjust(self, tenant: str, tokens: int, ident: str, note: str) -> tuple[Balance, bool]:
        """Give or take tokens; return what the tenant then has, and whether this changed it."""
        from extproc.quota import administration
        from extproc.quota.schema import Kind

        now = self._milliseconds(None)
        return await self._do(
            lambda: administration.give(
                self._engine, self._plans, tenant, Kind.ADJUST, tokens, ident, note, now
            )
        )

    async def preview(
        self, below: float, bonus: float, at: float | None, limit: int
    ) -> tuple[Progress, list[Affected]]:
        """Return what a campaign would do, and the first subscriptions that it would change."""
        from extproc.quota import campaign

        rule, moment = campaign.Rule.of(below, bonus), self._milliseconds(at)

        def look() -> tuple[Progress, list[Affected]]:
            sums = campaign.preview(self._engine, rule, moment)
            return sums, campaign.rows(self._engine, rule, moment, limit)

        return await self._do(look)

    async def campaigns(self, limit: int, ident: str | None = None) -> Sequence[RowMapping]:
        """Return campaigns that were begun, the last first; or the one of this id."""
        from extproc.quota import browse

        return await self._do(lambda: browse.begun(self._engine, limit=limit, ident=ident))

    async def compensate(
        self, ident: str, below: float, bonus: float, at: float | None
    ) -> AsyncIterator[Progress]:
        """Apply a campaign, or what is left of it, and tell how far it is after each batch."""
        from extproc.quota import campaign

        rule = campaign.Rule.of(below, bonus)
        batches = campaign.apply(self._engine, ident, rule, self._milliseconds(at))
        while (progress := await self._do(lambda: next(batches, None))) is not None:
            yield progress

    def _milliseconds(self, at: float | None) -> int:
        return round(1000 * (self._wall_clock() if at is None else at))

    async def _do(self, work: Callable[[], T]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return await self._worker(work)
        except SQLAlchemyError as error:
            raise LedgerSilentError(
                f"the ledger does not answer ({type(error).__name__})"
            ) from error
