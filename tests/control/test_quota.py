"""Tenants, quotas and compensation through the API, on a ledger in SQLite."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from extproc import app
from extproc.config import parse
from extproc.control.pb import compensation_pb2 as comp
from extproc.control.pb import tenants_pb2 as pb
from extproc.control.pb.compensation_pb2_grpc import CompensationServiceStub
from extproc.control.pb.tenants_pb2_grpc import TenantServiceStub
from extproc.core.outcomes import Outcome
from extproc.quota.database import open_database
from extproc.quota.ledger import Ledger
from extproc.quota.plans import quota_plans
from extproc.quota.ports import Settlement

PLANS = """\
plans:
  gold: {requests_per_minute: 60, tokens_per_minute: 5000, burst: 2, quota: {tokens: 1000}}
  rated: {requests_per_minute: 10}
tenants:
  pay: {class: P0, plan: gold}
  service: {class: P1, plan: rated}
  plain: {class: P1}
  anonymous: {class: P2, plan: gold}
"""


@pytest.fixture
async def served(config_text: str, directory: Path, make_served: Any) -> AsyncIterator[Any]:
    """A Tidegate whose plans have quotas; tenants pay, shop and zoo have used some of 1000 tokens."""
    settings = yaml.safe_load(config_text) | yaml.safe_load(PLANS)
    settings["state"] = {
        "database": f"sqlite:///{directory}/ledger.db",
        "outbox": f"{directory}/outbox.db",
    }
    config = parse(yaml.safe_dump(settings))
    engine = open_database(config.state.database)
    ledger = Ledger(engine, quota_plans(config), time.time)
    ledger.open("one")
    for tenant, used in (("pay", 900), ("shop", 100), ("zoo", 0)):
        ledger.apply(
            [Settlement(f"x-{tenant}", tenant, "gold", Outcome.COMPLETED, used, True, time.time())]
        )
    ledger.close()
    async with AsyncExitStack() as stack:
        yield await make_served(app.build(config), directory, stack)


async def test_tenants_are_listed_whether_configured_or_only_known_to_the_ledger(
    served: Any,
) -> None:
    stub = TenantServiceStub(await served.as_("viewer"))

    told = await stub.ListTenants(pb.ListTenantsRequest())

    assert [
        (each.name, each.service_class, each.plan, each.configured) for each in told.tenants
    ] == [
        ("anonymous", "P2", "gold", True),
        ("pay", "P0", "gold", True),
        ("plain", "P1", "", True),
        ("service", "P1", "rated", True),
        ("shop", "P2", "gold", False),
        ("zoo", "P2", "gold", False),
    ]
    by_name = {each.name: each for each in told.tenants}
    pay, service = by_name["pay"], by_name["service"]
    quota = pay.quota
    assert (quota.total, quota.used, quota.held, quota.available) == (1000, 900, 0, 100)
    assert quota.period_start.seconds < time.time() < quota.period_end.seconds
    assert (pay.rate.requests_per_minute, pay.rate.tokens_per_minute, pay.rate.burst) == (
        60,
        5000,
        2,
    )
    assert not service.HasField("quota")
    assert not service.rate.HasField("tokens_per_minute")
    assert not by_name["plain"].HasField("rate")
    assert not told.more


async def test_tenants_come_in_pages_and_by_prefix(served: Any) -> None:
    stub = TenantServiceStub(await served.as_("viewer"))

    page = await stub.ListTenants(pb.ListTenantsRequest(limit=2, after="anonymous"))
    some = await stub.ListTenants(pb.ListTenantsRequest(prefix="s"))

    assert ([each.name for each in page.tenants], page.more) == (["pay", "plain"], True)
    assert ([each.name for each in some.tenants], some.more) == (["service", "shop"], False)


async def test_one_tenant_is_told_or_not_known(served: Any) -> None:
    stub = TenantServiceStub(await served.as_("viewer"))

    assert (await stub.GetTenant(pb.GetTenantRequest(name="shop"))).quota.used == 100
    assert (await stub.GetTenant(pb.GetTenantRequest(name="plain"))).configured
    for name in ("", "nobody", "x" * 300):
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.GetTenant(pb.GetTenantRequest(name=name))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_account_is_read_entry_by_entry(served: Any) -> None:
    stub = TenantServiceStub(await served.as_("viewer"))

    first = await stub.ListEntries(pb.ListEntriesRequest(tenant="pay", limit=1))
    (charge,) = first.entries
    rest = await stub.ListEntries(pb.ListEntriesRequest(tenant="pay", before_id=charge.id))
    (opening,) = rest.entries

    assert (charge.kind, charge.tokens, charge.balance, first.more) == ("charge", -900, 100, True)
    assert (charge.exchange, charge.outcome, charge.estimated) == ("x-pay", "completed", True)
    assert (opening.kind, opening.tokens, opening.balance, rest.more) == (
        "opening",
        1000,
        1000,
        False,
    )
    for request in (
        pb.ListEntriesRequest(tenant="plain"),
        pb.ListEntriesRequest(tenant="pay", at=Timestamp(seconds=1_000_000_000)),
    ):
        assert await stub.ListEntries(request) == pb.ListEntriesResponse()


async def test_tokens_are_given_once_per_id_and_audited(served: Any) -> None:
    stub = TenantServiceStub(await served.as_("admin"))
    request = pb.AdjustQuotaRequest(id="t1", tenant="pay", tokens=50, reason="sorry")

    done = await stub.AdjustQuota(request)
    again = await stub.AdjustQuota(request)

    assert (done.before.available, done.after.available, done.repeated_id) == (100, 150, False)
    assert (again.after.available, again.repeated_id) == (150, True)
    (line,) = (served.directory / "kept" / "audit.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["action"], entry["target"], entry["who"]) == ("quota.adjust", "pay", "the-admin")
    assert (entry["before"], entry["after"]) == (
        {"available": 100},
        {"available": 150, "tokens": 50, "id": "t1"},
    )


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"id": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tokens": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tokens": 1 << 60}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"reason": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tenant": "plain"}, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_what_cannot_be_adjusted_is_refused(
    served: Any, more: dict[str, Any], code: grpc.StatusCode
) -> None:
    stub = TenantServiceStub(await served.as_("admin"))
    given: dict[str, Any] = {"id": "t1", "tenant": "pay", "tokens": 5, "reason": "x"}

    with pytest.raises(aio.AioRpcError) as refused:
        await stub.AdjustQuota(pb.AdjustQuotaRequest(**(given | more)))

    assert refused.value.code() is code


async def test_a_campaign_is_looked_at_then_applied_once(served: Any) -> None:
    stub = CompensationServiceStub(await served.as_("admin"))
    campaign = comp.Campaign(id="618")

    dry = await stub.DryRunCompensation(comp.DryRunCompensationRequest(campaign=campaign))
    told = dry.totals
    assert (told.subscriptions, told.resets, told.bonuses) == (3, 1, 1)
    assert (told.tokens_reset, told.tokens_bonus, dry.begun) == (100, 250, False)
    rows = [(each.tenant, each.kind, each.used, each.tokens) for each in dry.rows]
    assert rows == [("pay", "bonus", 900, 250), ("shop", "reset", 100, 100)]

    request = comp.ApplyCompensationRequest(campaign=campaign, reason="a bad day")
    request.expected_subscriptions = 3
    progress = [each async for each in stub.ApplyCompensation(request)]
    again = [each async for each in stub.ApplyCompensation(request)]

    assert progress[-1].done
    assert (progress[-1].totals, again[-1].totals) == (told, told)
    tenants = TenantServiceStub(await served.as_("viewer"))
    shop = await tenants.GetTenant(pb.GetTenantRequest(name="shop"))
    assert (shop.quota.used, shop.quota.available) == (0, 1000)
    listed = await stub.ListCampaigns(comp.ListCampaignsRequest())
    assert [(each.campaign.id, each.done, each.totals) for each in listed.campaigns] == [
        ("618", True, told)
    ]
    assert (await stub.DryRunCompensation(comp.DryRunCompensationRequest(campaign=campaign))).begun
    lines = (served.directory / "kept" / "audit.jsonl").read_text().splitlines()
    actions = [(each["action"], each["target"], each["reason"]) for each in map(json.loads, lines)]
    assert actions[:2] == [
        ("compensation.begin", "618", "a bad day"),
        ("compensation.end", "618", "a bad day"),
    ]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"campaign": {"id": "a b"}}, grpc.StatusCode.INVALID_ARGUMENT),
        (
            {"campaign": {"id": "x", "valid_at": {"seconds": 1 << 40}}},
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        ({"reason": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"campaign": {"id": "x", "below": 3.0}}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"expected_subscriptions": 7}, grpc.StatusCode.ABORTED),
    ],
)
async def test_a_campaign_that_makes_no_sense_changes_nothing(
    served: Any, more: dict[str, Any], code: grpc.StatusCode
) -> None:
    stub = CompensationServiceStub(await served.as_("admin"))
    given: dict[str, Any] = {"campaign": {"id": "x"}, "reason": "r"}

    with pytest.raises(aio.AioRpcError) as refused:
        async for _ in stub.ApplyCompensation(comp.ApplyCompensationRequest(**(given | more))):
            pass

    assert refused.value.code() is code
    assert (await stub.ListCampaigns(comp.ListCampaignsRequest())) == comp.ListCampaignsResponse()


async def test_a_ledger_that_does_not_answer_holds_up_nobody_else(served: Any) -> None:
    (served.directory / "ledger.db").write_bytes(b"this is no database")
    for suffix in ("-wal", "-shm"):
        (served.directory / f"ledger.db{suffix}").unlink(missing_ok=True)
    stub = TenantServiceStub(await served.as_("viewer"))

    with pytest.raises(aio.AioRpcError) as refused:
        await stub.ListTenants(pb.ListTenantsRequest())

    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the ledger does not answer" in (refused.value.details() or "")


class TestWithoutQuotas:
    """Where no plan has a quota there is no ledger."""

    @pytest.fixture
    async def served(self, built: Any, directory: Path, make_served: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            yield await make_served(built, directory, stack)

    async def test_tenants_are_told_all_the_same(self, served: Any) -> None:
        stub = TenantServiceStub(await served.as_("viewer"))

        told = await stub.ListTenants(pb.ListTenantsRequest())

        assert [each.name for each in told.tenants] == ["marketing", "pay", "service"]
        assert (await stub.GetTenant(pb.GetTenantRequest(name="pay"))).service_class == "P0"
        request = pb.ListEntriesRequest(tenant="pay")
        assert await stub.ListEntries(request) == pb.ListEntriesResponse()

    async def test_nothing_is_given_and_nobody_compensated(self, served: Any) -> None:
        channel = await served.as_("admin")
        tenants, compensation = TenantServiceStub(channel), CompensationServiceStub(channel)
        adjust = pb.AdjustQuotaRequest(id="t", tenant="pay", tokens=1, reason="r")
        dry = comp.DryRunCompensationRequest(campaign=comp.Campaign(id="x"))

        for call in (tenants.AdjustQuota(adjust), compensation.DryRunCompensation(dry)):
            with pytest.raises(aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        listed = await compensation.ListCampaigns(comp.ListCampaignsRequest())
        assert listed == comp.ListCampaignsResponse()
