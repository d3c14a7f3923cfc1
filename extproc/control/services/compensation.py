"""Compensation: looked at first, then applied, with its progress."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from extproc.control.audit import Audit
from extproc.control.auth import Callers
from extproc.control.pb import compensation_pb2, compensation_pb2_grpc
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

if TYPE_CHECKING:
    from extproc.quota.campaign import Progress

SHARE = 0.25
"""Both shares, where the caller gives none."""
_PARTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class CompensationService(compensation_pb2_grpc.CompensationServiceServicer):
    """Serves ``tidegate.v1.CompensationService``; ``desk`` is None where no plan has a quota."""

    def __init__(
        self,
        desk: QuotaDesk | None,
        callers: Callers,
        audit: Audit | None,
        wall_clock: Callable[[], float],
    ) -> None:
        self._wall_clock = wall_clock
        self._desk = desk
        self._callers = callers
        self._audit = audit

    async def DryRunCompensation(
        self, request: compensation_pb2.DryRunCompensationRequest, context: Context
    ) -> compensation_pb2.DryRunCompensationResponse:
        """Tell what a campaign would do."""
        limit, campaign = await limit_of(request, context), request.campaign
        at = await self._moment(campaign, context)
        async with quota_errors(context):
            desk = await self._open(context)
            sums, rows = await desk.preview(*_shares(campaign), at, limit)
            begun = await desk.campaigns(1, campaign.id)
        return compensation_pb2.DryRunCompensationResponse(
            totals=_totals(sums),
            rows=[
                compensation_pb2.CompensationRow(
                    tenant=each.tenant,
                    plan=each.plan,
                    total=each.total,
                    used=each.used,
                    kind=each.kind,
                    tokens=each.tokens,
                )
                for each in rows
            ],
            begun=bool(begun),
        )

    async def ApplyCompensation(
        self, request: compensation_pb2.ApplyCompensationRequest, context: Context
    ) -> AsyncIterator[compensation_pb2.CompensationProgress]:
        """Apply a campaign."""
        campaign, caller = request.campaign, caller_of(self._callers, context)
        reason = await reason_of(request.reason, context)
        at = await self._moment(campaign, context)
        below, bonus = _shares(campaign)
        what: dict[str, object] = {"below": below, "bonus": bonus}
        async with quota_errors(context):
            desk = await self._open(context)
            if request.HasField("expected_subscriptions"):
                await self._compare(request, desk, at, context)
            await self._write(caller, "compensation.begin", campaign.id, what, reason)
            async for progress in desk.compensate(campaign.id, below, bonus, at):
                done = progress.done >= progress.total
                if done:
                    told = {"resets": progress.resets, "bonuses": progress.bonuses}
                    await self._write(caller, "compensation.end", campaign.id, what | told, reason)
                yield compensation_pb2.CompensationProgress(
                    completed=progress.done,
                    total=progress.total,
                    totals=_totals(progress),
                    done=done,
                )

    async def ListCampaigns(
        self, request: compensation_pb2.ListCampaignsRequest, context: Context
    ) -> compensation_pb2.ListCampaignsResponse:
        """Tell of campaigns that were begun."""
        limit = await limit_of(request, context)
        async with quota_errors(context):
            found = () if self._desk is None else await self._desk.campaigns(limit)
        return compensation_pb2.ListCampaignsResponse(campaigns=[_applied(each) for each in found])

    async def _open(self, context: Context) -> QuotaDesk:
        if self._desk is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "no plan has a quota: nobody is compensated"
            )
        return self._desk

    async def _compare(
        self,
        request: compensation_pb2.ApplyCompensationRequest,
        desk: QuotaDesk,
        at: float | None,
        context: Context,
    ) -> None:
        sums, _ = await desk.preview(*_shares(request.campaign), at, 1)
        now = _totals(sums).subscriptions
        if now != request.expected_subscriptions:
            await context.abort(
                grpc.StatusCode.ABORTED,
                f"there are {now} subscriptions now, not {request.expected_subscriptions}: "
                "make the dry run again",
            )

    async def _write(
        self, caller: Any, action: str, campaign: str, after: Mapping[str, object], reason: str
    ) -> None:
        if self._audit is not None:
            await self._audit.record(
                caller, action, target=campaign, before=None, after=after, reason=reason
            )

    async def _moment(self, campaign: compensation_pb2.Campaign, context: Context) -> float | None:
        """Return the campaign's moment, None for now, or end the call where it is named wrongly."""
        at = unix_time(campaign.valid_at) if campaign.HasField("valid_at") else None
        if not _NAME.fullmatch(campaign.id):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "name the campaign in up to 100 letters, digits and ._-",
            )
        if at is not None and not 0 <= at <= self._wall_clock():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "valid_at lies in the future")
        return at


def _shares(campaign: compensation_pb2.Campaign) -> tuple[float, float]:
    return (
        campaign.below if campaign.HasField("below") else SHARE,
        campaign.bonus if campaign.HasField("bonus") else SHARE,
    )


def _totals(sums: Progress) -> compensation_pb2.CompensationTotals:
    return compensation_pb2.CompensationTotals(
        subscriptions=sums.resets + sums.bonuses + sums.untouched,
        resets=sums.resets,
        bonuses=sums.bonuses,
        tokens_reset=sums.reset_tokens,
        tokens_bonus=sums.bonus_tokens,
    )


def _applied(row: Mapping[Any, Any]) -> compensation_pb2.AppliedCampaign:
    return compensation_pb2.AppliedCampaign(
        campaign=compensation_pb2.Campaign(
            id=row["id"],
            valid_at=timestamp(row["moment"] / 1000),
            below=row["below"] / _PARTS,
            bonus=row["bonus"] / _PARTS,
        ),
        totals=compensation_pb2.CompensationTotals(
            subscriptions=row["resets"] + row["bonuses"] + row["untouched"],
            resets=row["resets"],
            bonuses=row["bonuses"],
            tokens_reset=row["reset_tokens"],
            tokens_bonus=row["bonus_tokens"],
        ),
        done=row["cursor"] >= row["last"],
    )
