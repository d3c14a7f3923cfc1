"""Tidegate itself dies, hangs or is stopped: Envoy does what is configured, and all comes back."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT = {
    "model": "qwen", "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4, "ignore_eos": True,
}  # fmt: skip
# A second or so: to see a stream to its end.
SHORT_STREAM = {**CHAT, "max_tokens": 60, "stream": True}
ENDLESS_STREAM = {**CHAT, "max_tokens": 2000, "stream": True}
DONE = b"data: [DONE]\n\n"

CLOSED = "envoy: {failure_mode: closed, status_on_error: 507}"
# No class waits, so Envoy may lose patience early.
IMPATIENT = """
classes: {P0: {strict: true, max_wait: 0s}, P1: {max_wait: 0s}, P2: {max_wait: 0s}}
envoy: {message_timeout: 500ms, failure_mode: %s, status_on_error: 504}
"""


class TestDies:
    async def test_open_passes_everything_and_streams_survive(self, stand_with: Any) -> None:
        stand = await stand_with()
        await stand.show_usage(0.99)
        async with stand.streaming(SHORT_STREAM, "pay") as received:
            await stand.kill("tidegate")
            for tenant in ("pay", "service", "marketing"):
                for body in (CHAT, {**CHAT, "stream": True}):
                    reply = await stand.post(body, x_tenant_id=tenant)
                    assert reply.status_code == 200
                    assert "x-tidegate-verdict" not in reply.headers
                    assert "load_shedding_fallback" not in reply.text
            assert (await stand.rest(received)).endswith(DONE)

        await stand.restart()

        await self.assert_decides_again(stand)

    async def test_closed_fails_everything_as_configured(self, stand_with: Any) -> None:
        stand = await stand_with(CLOSED)
        await stand.show_usage(0.99)
        await stand.kill("tidegate")
        for tenant in ("pay", "service", "marketing"):
            reply = await stand.post(CHAT, x_tenant_id=tenant)
            assert reply.status_code == 507
        assert await stand.received() == []

        await stand.restart()

        await self.assert_decides_again(stand)

    async def test_closed_cuts_streams_under_way(self, stand_with: Any) -> None:
        """Envoy's own way with a lost processor; `open` is the mode that keeps streams alive."""
        stand = await stand_with(CLOSED)
        async with stand.streaming(ENDLESS_STREAM, "pay") as received:
            await stand.kill("tidegate")
            with pytest.raises(httpx.RemoteProtocolError):
                await stand.rest(received)
        await stand.eventually(lambda: all(e.engine.idle for e in stand.engines), "idle engines")

    @pytest.mark.parametrize("mode", ["open", "closed"])
    async def test_while_a_client_waits_for_the_first_byte(
        self, stand_with: Any, mode: str
    ) -> None:
        stand = await stand_with(f"envoy: {{failure_mode: {mode}, status_on_error: 507}}")
        async with asyncio.TaskGroup() as tasks:
            reply = tasks.create_task(stand.post({**CHAT, "max_tokens": 60}, x_tenant_id="pay"))
            await stand.eventually(lambda: any(e.engine.running for e in stand.engines), "it runs")
            await stand.kill("tidegate")
        assert reply.result().status_code == {"open": 200, "closed": 507}[mode]
        await stand.eventually(lambda: all(e.engine.idle for e in stand.engines), "idle engines")

    async def assert_decides_again(self, stand: Any) -> None:
        """Envoy looks for a dead processor now and then; from then on every call is judged."""

        async def judged() -> bool:
            reply = await stand.post(CHAT, x_tenant_id="marketing")
            return bool(reply.headers.get("x-tidegate-verdict") == "shed")

        await stand.eventually(judged, "a decision")
        for tenant, verdict in (("marketing", "shed"), ("pay", "admit"), ("service", "shed")):
            reply = await stand.post(CHAT, x_tenant_id=tenant)
            assert reply.headers["x-tidegate-verdict"] == verdict
        await stand.idle()


class TestHangs:
    @pytest.mark.parametrize(("mode", "status"), [("open", 200), ("closed", 504)])
    async def test_envoy_waits_as_long_as_configured(
        self, stand_with: Any, mode: str, status: int
    ) -> None:
        stand = await stand_with(IMPATIENT % mode)
        timeouts = "http.tidegate.ext_proc.tidegate.message_timeouts"
        stand.signal("tidegate", signal.SIGSTOP)
        try:
            began = time.monotonic()
            reply = await stand.post(CHAT, x_tenant_id="pay")
            waited = time.monotonic() - began
        finally:
            stand.signal("tidegate", signal.SIGCONT)

        assert reply.status_code == status
        assert "x-tidegate-verdict" not in reply.headers
        assert waited >= 0.49  # Envoy counts in whole milliseconds, from a little later on
        assert await stand.envoy(timeouts) == 1
        assert len(await stand.received()) == (1 if mode == "open" else 0)

        async def judged() -> bool:
            again = await stand.post(CHAT, x_tenant_id="pay")
            return "x-tidegate-verdict" in again.headers

        await stand.eventually(judged, "a decision")
        await stand.idle()


class TestStops:
    async def test_sigterm_drains(self, stand_with: Any) -> None:
        stand = await stand_with()
        process = stand.children["tidegate"].process
        async with stand.streaming(SHORT_STREAM, "pay") as received:
            stand.signal("tidegate", signal.SIGTERM)
            await stand.until_ready(False)
            assert process.returncode is None
            assert (await stand.metrics()).of("in_flight", pool="*") == 1
            assert (await stand.rest(received)).endswith(DONE)

        # Envoy's access-log stream stays open for ever; that must not hold up the end.
        async with asyncio.timeout(5):
            assert await process.wait() == 0

    async def test_sigterm_without_traffic_is_quick(self, stand_with: Any) -> None:
        stand = await stand_with(engines=1)
        await stand.post(CHAT, x_tenant_id="pay")
        await stand.settled()
        stand.signal("tidegate", signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await stand.children["tidegate"].process.wait() == 0
