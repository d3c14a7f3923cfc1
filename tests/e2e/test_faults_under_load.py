"""What fails while calls keep coming: the rows of a table of faults, each with real parts.

Redis, Tidegates and Envoys that die under load are in ``tests/cluster``, the ledger's database in
``tests/quota/ledger/outage.py``, a configuration that is refused in ``test_reload.py``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import httpx
import pytest

from extproc.sim.emulator.faults import MetricsFault
from tests.e2e.conftest import Stand

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT: dict[str, Any] = {
    "model": "qwen", "messages": [{"role": "user", "content": "under load"}],
    "max_tokens": 4, "ignore_eos": True,
}  # fmt: skip
TENANTS = ("pay", "service", "marketing")
PAUSE = 0.02
"""Seconds from one call to the next, whatever becomes of them."""
FULL = 0.88
"""Of the cache: P2 is closed, P1 and P0 are open."""
JUDGED = {
    ("pay", 200, "admit", "admitted"),
    ("service", 200, "admit", "admitted"),
    ("marketing", 200, "shed", "kv_watermark"),
}
PASSED = {(tenant, 200, "", "") for tenant in TENANTS}
"""By Envoy, with no Tidegate to ask."""

Call = tuple[str, int, str, str]
"""Who called, the status, the verdict and its reason; status 0 where nothing came."""


@dataclass
class Load:
    """What came of the calls so far, in the order of their ends."""

    calls: list[Call]

    async def until(self, number: int, kinds: Iterable[Call] | None = None) -> list[Call]:
        """Wait for this many calls more, where given all of these kinds; return all since."""
        seen = len(self.calls)

        def came() -> bool:
            latest = self.calls[seen:][-number:]
            return len(latest) == number and (kinds is None or set(latest) <= set(kinds))

        await Stand.eventually(came, f"{number} calls of {kinds}", 20)
        return self.calls[seen:]


@asynccontextmanager
async def loaded(stand: Any, post: Callable[[str], Any] | None = None) -> AsyncIterator[Load]:
    """Send calls of all tenants in turn, open loop, while the block runs; wait for their ends."""
    load, over = Load([]), asyncio.Event()

    async def call(tenant: str) -> None:
        try:
            reply = await (post(tenant) if post else stand.post(CHAT, x_tenant_id=tenant))
        except httpx.HTTPError:
            load.calls.append((tenant, 0, "", ""))
            return
        said = (reply.headers.get(f"x-tidegate-{name}", "") for name in ("verdict", "reason"))
        load.calls.append((tenant, reply.status_code, *said))

    async def send() -> None:
        async with asyncio.TaskGroup() as calls:
            for tenant in cycle(TENANTS):
                if over.is_set():
                    return
                calls.create_task(call(tenant))
                await asyncio.sleep(PAUSE)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        await load.until(9)
        yield load
        over.set()


@pytest.mark.parametrize(
    ("mode", "meanwhile"),
    [
        ("envoy: {failure_mode: open}", PASSED),
        (
            "envoy: {failure_mode: closed, status_on_error: 507}",
            {(tenant, 507, "", "") for tenant in TENANTS},
        ),
    ],
    ids=["open", "closed"],
)
async def test_tidegate_dead(stand_with: Any, mode: str, meanwhile: set[Call]) -> None:
    stand = await stand_with(mode)
    await stand.show_usage(FULL)
    async with loaded(stand) as load:
        await load.until(15, JUDGED)
        await stand.kill("tidegate")
        dead = await load.until(30, meanwhile)
        await stand.restart()
        again = await load.until(30, JUDGED)
    assert set(dead) <= JUDGED | meanwhile
    assert set(again) <= JUDGED | meanwhile
    await stand.idle()


async def test_tidegate_stopped_and_started(stand_with: Any) -> None:
    """No call fails, and who starts judges by what the engines say at once."""
    stand = await stand_with()
    await stand.show_usage(FULL)
    async with loaded(stand) as load:
        await load.until(15, JUDGED)
        stand.signal("tidegate", signal.SIGTERM)
        assert await stand.children["tidegate"].process.wait() == 0
        await stand.restart()
        await load.until(30, JUDGED)
    assert set(load.calls) <= JUDGED | PASSED
    await stand.idle()


async def test_endpoint_hung(stand_with: Any) -> None:
    """The other serves all that comes as soon as Envoy has noticed; nothing stays promised."""
    pool = "{balance: pick, scrape: {interval: 50ms, stale_after: 500ms}}"
    stand = await stand_with(f'pools: {{"*": {pool}}}', engines=0)
    models = await stand.http.get(f"{stand.url}/v1/models")
    body = {**CHAT, "model": models.json()["data"][0]["id"]}
    served = {(tenant, 200, "admit", "admitted") for tenant in TENANTS}

    async def post(tenant: str) -> httpx.Response:
        headers = {"x-tenant-id": tenant}
        url = f"{stand.url}/v1/chat/completions"
        reply = await stand.http.post(url, json=body, headers=headers, timeout=3)
        assert isinstance(reply, httpx.Response)
        return reply

    async with loaded(stand, post) as load:
        await load.until(15, served)
        stand.signal("engine-1", signal.SIGSTOP)
        await load.until(60, served)
        await load.until(100)  # so long that who was caught there has given up
        await load.until(60, served)
        stand.signal("engine-1", signal.SIGCONT)
        await load.until(30, served)
    left = {(tenant, 0, "", "") for tenant in TENANTS}
    assert set(load.calls) <= served | left
    await stand.until(lambda seen: seen.of("in_flight", pool="*") == 0, "nothing in flight")
    await stand.until(lambda seen: seen.sum("promised_blocks") == 0, "nothing promised")


@pytest.mark.parametrize("fault", [MetricsFault.HANG, MetricsFault.GARBAGE])
async def test_metrics_gone_at_both_endpoints(stand_with: Any, fault: MetricsFault) -> None:
    """While the reading is stale the class stays closed. Unknown is no idle engine either: what Tidegate
    knows of calls itself goes on."""
    stand = await stand_with()
    await stand.show_usage(FULL)
    async with loaded(stand) as load:
        await load.until(15, JUDGED)
        for engine in stand.engines:
            engine.faults = replace(engine.faults, metrics=fault)
        await stand.until(
            lambda seen: all(stand.state(seen, each) == "stale" for each in stand.plan.engines),
            "readings are stale",
        )
        stale = await load.until(60)
        for engine in stand.engines:
            engine.faults = replace(engine.faults, metrics=MetricsFault.NONE)
        await load.until(30, JUDGED)
    assert {call for call in stale if call[0] == "pay"} == {("pay", 200, "admit", "admitted")}
    assert {call[2] for call in stale if call[0] == "marketing"} == {"shed"}
    await stand.settled()


HOSTILE = (
    b"", b"{", b"[]", b"null", b'{"messages": ' + b"[" * 100_000, b'{"max_tokens": 1e999}',
    b'{"messages": [], "max_tokens": ' + b"9" * 5_000 + b"}", b'{"a": "\xff"}',
    b'{"model": "qwen", "model": 7}', b"\x1f\x8b" + b"\0" * 100, b'{"messages": ' + b'["",' * 20_000,
)  # fmt: skip


async def test_hostile_input(stand_with: Any) -> None:
    """Each is answered as a client's mistake, and those who pay do not notice."""
    stand = await stand_with()
    await stand.show_usage(FULL)
    over, statuses = asyncio.Event(), set[int]()

    async def attack() -> None:
        for body in cycle(HOSTILE):
            if over.is_set():
                return
            statuses.add((await stand.post(body, x_tenant_id="pay")).status_code)

    async with asyncio.TaskGroup() as tasks, loaded(stand) as load:
        attacks = [tasks.create_task(attack()) for _ in range(3)]
        await load.until(90)
        over.set()
        await asyncio.wait(attacks)
    assert set(load.calls) == JUDGED
    assert statuses <= {200, 400, 404, 413, 422}
    assert 400 in statuses
    await stand.settled()


async def test_spoofed_identity(stand_with: Any) -> None:
    """Names that are only claimed open nothing, however many come."""
    identity = """
identity:
  sources:
    - header: {name: x-tenant-id, trusted: true}
    - header: {name: x-claimed}
"""
    stand = await stand_with(identity)
    await stand.show_usage(FULL)

    async def post(tenant: str) -> Any:
        if tenant == "marketing":
            claims = {"x-claimed": "pay", "x-tidegate-class": "P0", "x-tidegate-verdict": "admit"}
            url = f"{stand.url}/v1/chat/completions"
            return await stand.http.post(url, json=CHAT, headers=claims)
        return await stand.post(CHAT, x_tenant_id=tenant)

    async with loaded(stand, post) as load:
        await load.until(90)
    assert set(load.calls) == JUDGED
    await stand.settled()
