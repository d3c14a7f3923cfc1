"""Who calls, what they have bought, and what they have used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from extproc.config import Config
from extproc.control.audit import Audit
from extproc.control.auth import Callers
from extproc.control.levers import Levers
from extproc.control.pb import tenants_pb2, tenants_pb2_grpc
from extproc.control.quota_desk import QuotaDesk
from extproc.control.services.convert import (
    Context,
    caller_of,
    limit_of,
    quota_errors,
    reason_of,
    timestamp,
    unix_time,
)
from extproc.core.classes import LONGEST_TENANT

if TYPE_CHECKING:
    from extproc.quota.administration import Balance
    from extproc.quota.browse import Entry as Booked

_MOST_TOKENS = 1 << 53


class TenantService(tenants_pb2_grpc.TenantServiceServicer):
    """Serves ``tidegate.v1.TenantService``; ``desk`` is None where no plan has a quota."""

    def __init__(
        self, levers: Levers, desk: QuotaDesk | None, callers: Callers, audit: Audit | None
    ) -> None:
        self._levers = levers
        self._desk = desk
        self._callers = callers
        self._audit = audit

    async def ListTenants(
        self, request: tenants_pb2.ListTenantsRequest, context: Context
    ) -> tenants_pb2.ListTenantsResponse:
        """Tell of tenants, by name."""
        limit, prefix, after = await limit_of(request, context), request.prefix, request.after
        names = {
            each for each in self._levers.config.tenants if each.startswith(prefix) and each > after
        }
        balances = {}
        async with quota_errors(context):
            if self._desk is not None:
                names.update(await self._desk.names(prefix=prefix, after=after, limit=limit + 1))
            shown = sorted(names)[:limit]
            if self._desk is not None:
                balances = dict(await self._desk.balances(shown))
        return tenants_pb2.ListTenantsResponse(
            tenants=[tenant(self._levers.config, name, balances.get(name)) for name in shown],
            more=len(names) > limit,
        )

    async def GetTenant(
        self, request: tenants_pb2.GetTenantRequest, context: Context
    ) -> tenants_pb2.Tenant:
        """Tell of one tenant."""
        name = request.name
        balance, known = None, name in self._levers.config.tenants
        async with quota_errors(context):
            if self._desk is not None and 0 < len(name) <= LONGEST_TENANT:
                balance = (await self._desk.balances([name])).get(name)
        if not known and (balance is None or balance.id == 0):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such tenant is known")
        return tenant(self._levers.config, name, balance)

    async def ListEntries(
        self, request: tenants_pb2.ListEntriesRequest, context: Context
    ) -> tenants_pb2.ListEntriesResponse:
        """Tell what a tenant was given and charged."""
        limit = await limit_of(request, context)
        at = unix_time(request.at) if request.HasField("at") else None
        before = request.before_id if request.HasField("before_id") else None
        found: list[Booked] = []
        async with quota_errors(context):
            if self._desk is not None:
                balance = (await self._desk.balances([request.tenant], at)).get(request.tenant)
                if balance is not None:
                    found = await self._desk.entries(balance.id, before=before, limit=limit + 1)
        return tenants_pb2.ListEntriesResponse(
            entries=[_entry(each) for each in found[:limit]], more=len(found) > limit
        )

    async def AdjustQuota(
        self, request: tenants_pb2.AdjustQuotaRequest, context: Context
    ) -> tenants_pb2.AdjustQuotaResponse:
        """Give or take tokens."""
        reason = await reason_of(request.reason, context)
        if not request.id or not 0 < abs(request.tokens) <= _MOST_TOKENS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"give an id, and tokens: at most {_MOST_TOKENS}, under 0 to take some away",
            )
        desk = self._desk
        if desk is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _NO_QUOTA)
        async with quota_errors(context):
            before = await self._balance(request.tenant, desk, context)
            after, changed = await desk.adjust(request.tenant, request.tokens, request.id, reason)
        if changed and self._audit is not None:
            await self._audit.record(
                caller_of(self._callers, context),
                "quota.adjust",
                target=request.tenant,
                before={"available": _left(before)},
                after={"available": _left(after), "tokens": request.tokens, "id": request.id},
                reason=reason,
            )
        return tenants_pb2.AdjustQuotaResponse(
            before=quota(before), after=quota(after), repeated_id=not changed
        )

    async def _balance(self, name: str, desk: QuotaDesk, context: Context) -> Balance:
        balance = (await desk.balances([name])).get(name)
        if balance is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _NO_QUOTA)
        return balance


_NO_QUOTA = "the tenant has no plan with a quota"


def tenant(config: Config, name: str, balance: Balance | None) -> tenants_pb2.Tenant:
    """Return a tenant as the API tells it."""
    known = config.tenants.get(name) or config.tenants.get(config.identity.default_tenant)
    lowest = list(config.classes)[-1]
    plan_name = None if known is None else known.plan
    plan = None if plan_name is None else config.plans.get(plan_name)
    return tenants_pb2.Tenant(
        name=name,
        service_class=lowest if known is None else known.class_,
        plan=plan_name or "",
        configured=name in config.tenants,
        quota=None if balance is None else quota(balance),
        rate=None
        if plan is None
        else tenants_pb2.RateLimit(
            requests_per_minute=plan.requests_per_minute,
            tokens_per_minute=plan.tokens_per_minute,
            burst=plan.burst,
        ),
    )


def quota(balance: Balance) -> tenants_pb2.Quota:
    """Return a balance as the API tells it."""
    return tenants_pb2.Quota(
        period_start=timestamp(balance.starts_at / 1000),
        period_end=timestamp(balance.ends_at / 1000),
        total=balance.total,
        used=balance.used,
        held=balance.held,
        available=_left(balance),
    )


def _left(balance: Balance) -> int:
    return balance.available - balance.held


def _entry(booked: Booked) -> tenants_pb2.Entry:
    line = booked.line
    return tenants_pb2.Entry(
        id=booked.id,
        at=timestamp(line.at / 1000),
        kind=line.kind.value,
        tokens=line.tokens,
        balance=line.balance,
        exchange=line.exchange,
        outcome=line.outcome,
        estimated=line.estimated,
        note=line.note,
    )
