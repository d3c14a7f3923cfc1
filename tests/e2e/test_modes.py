"""Operators switch modes while traffic flows through Envoy."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from extproc.control.client import Access, connect
from extproc.control.pb import modes_pb2, modes_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "qwen", "max_tokens": 4000, "messages": [{"role": "user", "content": "hello"}]}
ENVOYS_OWN = {"date", "server", "transfer-encoding", "x-envoy-upstream-service-time"}
VERDICTS = ("admit", "shed", "reject", "wait")


async def switch(stand: Any, mode: modes_pb2.Mode.ValueType) -> Any:
    access = Access(stand.plan.config.listen.control, stand.plan.token)
    async with connect(access) as channel:
        stub = modes_pb2_grpc.ModeServiceStub(channel)
        return await stub.SetMode(modes_pb2.SetModeRequest(mode=mode, reason="test"))


async def reason(stand: Any, tenant: str) -> str:
    reply = await stand.post(CHAT | {"max_tokens": 4}, x_tenant_id=tenant)
    assert reply.status_code == 200
    return str(reply.headers["x-tidegate-reason"])


async def test_transactions_only_turns_away_all_but_payments_and_back(stand: Any) -> None:
    await switch(stand, modes_pb2.MODE_TRANSACTIONS_ONLY)
    try:
        told = [await reason(stand, each) for each in ("pay", "service", "marketing")]
        assert told == ["admitted", "mode_transactions_only", "mode_transactions_only"]
        await switch(stand, modes_pb2.MODE_PROTECT)
        told = [await reason(stand, each) for each in ("pay", "service", "marketing")]
        assert told == ["admitted", "admitted", "mode_protect"]
    finally:
        await switch(stand, modes_pb2.MODE_NORMAL)
    assert await reason(stand, "marketing") == "admitted"


async def test_in_shadow_mode_what_engines_and_clients_get_is_untouched(stand_with: Any) -> None:
    """Even what would be shed, clamped or refused; also after a restart."""
    stand = await stand_with()
    await stand.show_usage(0.99)
    calls: list[tuple[str, bytes]] = [
        ("marketing", json.dumps(CHAT | {"max_tokens": 3, "stream": True}).encode()),
        ("service", b'{ "messages":[{"role":"user","content":"odd   spaces"}],"max_tokens":3}'),
        ("pay", json.dumps(CHAT | {"max_tokens": 600}).encode()),
        ("marketing", b"{nonsense"),
    ]
    engine = f"http://{stand.plan.engines[0]}/v1/chat/completions"
    json_type = {"content-type": "application/json"}
    straight = [await stand.http.post(engine, content=raw, headers=json_type) for _, raw in calls]
    already = len(await stand.received())

    await switch(stand, modes_pb2.MODE_SHADOW)
    through = [await stand.post(raw, x_tenant_id=tenant) for tenant, raw in calls]

    seen = await stand.metrics()
    received = (await stand.received())[already:]
    assert sorted(each.sha256 for each in received) == sorted(
        hashlib.sha256(raw).hexdigest() for _, raw in calls
    )
    assert not [name for each in received for name in each.headers if "tidegate" in name]
    for reply, same in zip(through, straight, strict=True):
        assert reply.status_code == same.status_code
        assert set(reply.headers) - ENVOYS_OWN == set(same.headers) - ENVOYS_OWN
    verdicts = {each: stand.grown(seen, "decisions_total", verdict=each) for each in VERDICTS}
    assert verdicts["shed"] >= 1, "it decides all the same"
    assert verdicts["reject"] == 1
    assert sum(verdicts.values()) == 4

    await stand.kill("tidegate")
    await stand.restart()
    tenant, raw = calls[0]
    again = await stand.post(raw, x_tenant_id=tenant)
    assert "x-tidegate-verdict" not in again.headers, "the mode is kept"
