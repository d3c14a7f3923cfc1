"""Clients leave, engines fail, pages lie: nothing stays in flight and nothing is taken for idle."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import httpx
import pytest

from extproc.sim.emulator.faults import MetricsFault, Reset

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/chat/completions"
CHAT = {
    "model": "qwen", "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4, "ignore_eos": True,
}  # fmt: skip
# About half a minute: for ever, as far as a test is concerned.
ENDLESS = {**CHAT, "max_tokens": 2000}
STREAM = {**ENDLESS, "stream": True}
# A second or so: to see a stream to its end.
SHORT_STREAM = {**STREAM, "max_tokens": 60}
DONE = b"data: [DONE]\n\n"


def raw_call(body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: e\r\nx-tenant-id: pay\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def connect(stand: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*stand.plan.envoy.split(":"))


def abort(writer: asyncio.StreamWriter) -> None:
    """Leave as a client that is killed: with a reset."""
    writer.transport.abort()


def assert_fallback(reply: httpx.Response, reason: str) -> None:
    assert reply.status_code == 200
    assert reply.headers["x-tidegate-verdict"] == "shed"
    assert reply.headers["x-tidegate-reason"] == reason
    body = reply.json()
    assert body["id"].startswith("chatcmpl-promo-shedded-")
    assert body["tidegate"]["reason"] == reason


async def assert_ended(stand: Any, **outcomes: int) -> None:
    await stand.settled()
    assert await stand.ended() == outcomes


class TestClientLeaves:
    async def test_before_the_body_is_complete(self, stand: Any) -> None:
        _, writer = await connect(stand)
        writer.write(raw_call(CHAT)[:-20])
        await writer.drain()
        await stand.until_envoy("http.tidegate.downstream_rq_active", lambda active: active == 1)
        abort(writer)
        await stand.until_envoy("http.tidegate.downstream_rq_active", lambda active: active == 0)

        await assert_ended(stand)
        assert await stand.received() == []
        assert stand.grown(await stand.metrics(), "decisions_total") == 0

    async def test_while_it_waits_for_the_first_byte(self, stand: Any) -> None:
        _, writer = await connect(stand)
        writer.write(raw_call(ENDLESS))
        await stand.until(lambda seen: seen.of("in_flight", pool="*") == 1, "one in flight")
        await stand.eventually(lambda: any(e.engine.running for e in stand.engines), "it runs")
        abort(writer)

        await assert_ended(stand, client_gone=1)

    async def test_in_mid_stream(self, stand: Any) -> None:
        reader, writer = await connect(stand)
        writer.write(raw_call(STREAM))
        await reader.readuntil(b"data: ")
        assert (await stand.metrics()).of("in_flight", pool="*") == 1
        abort(writer)

        await assert_ended(stand, client_gone=1)

    async def test_after_the_last_event(self, stand: Any) -> None:
        reader, writer = await connect(stand)
        writer.write(raw_call({**STREAM, "max_tokens": 4}))
        await reader.readuntil(DONE)
        abort(writer)

        # The end of the body may or may not have been written by then.
        await stand.settled()
        assert stand.grown(await stand.metrics(), "exchanges_ended_total") == 1

    async def test_http2_reset_in_mid_stream(self, stand: Any) -> None:
        async with (
            httpx.AsyncClient(http1=False, http2=True) as client,
            client.stream("POST", stand.url + PATH, json=STREAM) as reply,
        ):
            await anext(reply.aiter_raw())

        await assert_ended(stand, client_gone=1)

    async def test_many_at_once_at_any_moment(self, stand_with: Any) -> None:
        """Who leaves before Envoy has our verdict has no end in its log: it is told all the same."""
        stand = await stand_with()

        async def come_and_go(number: int) -> None:
            reader, writer = await connect(stand)
            call = raw_call(STREAM if number % 2 else ENDLESS)
            writer.write(call[: len(call) - number % 3])  # a third of the bodies stays incomplete
            await writer.drain()
            if number % 5 == 0 and number % 2 and number % 3 == 0:
                await reader.readuntil(b"data: ")
            else:
                for _ in range(number % 7):
                    await asyncio.sleep(0)
            abort(writer)

        await asyncio.gather(*(come_and_go(number) for number in range(150)))
        await stand.until_envoy("http.tidegate.downstream_rq_active", lambda active: active == 0)
        await stand.settled()


class TestEngineFails:
    async def test_a_reset_before_the_first_byte(self, stand: Any) -> None:
        for engine in stand.engines:
            engine.faults = replace(engine.faults, reset=Reset.BEFORE_FIRST_BYTE)

        reply = await stand.post(CHAT, x_tenant_id="pay")

        assert_fallback(reply, "engine_error")
        assert len(await stand.received()) == 1
        await assert_ended(stand, engine_error=1)

    async def test_a_reset_in_mid_stream(self, stand: Any) -> None:
        for engine in stand.engines:
            engine.faults = replace(engine.faults, reset=Reset.MID_STREAM)

        with pytest.raises(httpx.RemoteProtocolError):
            await stand.post(STREAM, x_tenant_id="pay")

        await assert_ended(stand, engine_error=1)

    async def test_a_reset_within_a_whole_answer(self, stand: Any) -> None:
        """Envoy reads the usage out of the whole body first, so the client gets an error, no stump.

        That error is told to no filter, so it cannot become the fallback.
        """
        for engine in stand.engines:
            engine.faults = replace(engine.faults, reset=Reset.MID_STREAM)

        reply = await stand.post(CHAT, x_tenant_id="pay")

        assert reply.status_code == 502
        await assert_ended(stand, engine_error=1)

    async def test_an_engine_that_is_busy(self, stand: Any) -> None:
        for engine in stand.engines:
            engine.faults = replace(engine.faults, status=503)

        whole = await stand.post(CHAT, x_tenant_id="pay")
        stream = await stand.post({**CHAT, "stream": True}, x_tenant_id="pay")

        assert_fallback(whole, "engine_rejected")
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.content.endswith(DONE)
        await assert_ended(stand, engine_rejected=2)

    @pytest.mark.parametrize(
        ("status", "outcome"), [(500, "engine_error"), (400, "engine_rejected")]
    )
    async def test_an_error_of_the_engines(self, stand: Any, status: int, outcome: str) -> None:
        for engine in stand.engines:
            engine.faults = replace(engine.faults, status=status)

        reply = await stand.post(CHAT, x_tenant_id="pay")

        assert reply.status_code == status
        assert reply.json()["error"]["message"] == "emulated fault"
        await assert_ended(stand, **{outcome: 1})

    async def test_an_engine_killed_under_load(self, stand_with: Any) -> None:
        stand = await stand_with(engines=0)
        models = await stand.http.get(f"{stand.url}/v1/models")
        body = {**SHORT_STREAM, "model": models.json()["data"][0]["id"]}

        begun: list[object] = []

        async def completes() -> bool:
            async with stand.streaming(body, "pay") as received:
                begun.append(received)
                try:
                    return bool((await stand.rest(received)).endswith(DONE))
                except httpx.RemoteProtocolError:
                    return False

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(completes()) for _ in range(20)]
            await stand.eventually(lambda: len(begun) == 20, "twenty streams")
            await stand.kill("engine-1")
        # What ran there was cut; what ran on the other was not.
        assert {each.result() for each in calls} == {True, False}

        await stand.settled()
        gone = stand.plan.engines[0]
        await stand.until(lambda seen: stand.state(seen, gone) != "fresh", "an old reading")

        # As soon as Envoy's health check has noticed, the other serves all that comes.
        await stand.until_envoy(
            r"cluster\.tidegate-pool-.\.membership_healthy", lambda healthy: healthy == 1
        )
        assert all(await asyncio.gather(*(completes() for _ in range(10))))
        await stand.settled()

    async def test_calls_right_after_an_engines_death_are_served_by_the_other(
        self, stand_with: Any
    ) -> None:
        stand = await stand_with(engines=0)
        models = await stand.http.get(f"{stand.url}/v1/models")
        body = {**CHAT, "model": models.json()["data"][0]["id"]}
        await stand.kill("engine-1")

        replies = await asyncio.gather(*(stand.post(body, x_tenant_id="pay") for _ in range(60)))

        assert {each.status_code for each in replies} == {200}


class TestMetricsFail:
    POOL = """
pools:
  "*":
    scheduling_policy: priority
    scrape: {interval: 50ms, timeout: 200ms, stale_after: 500ms, unknown_after: 1500ms}
"""

    @pytest.mark.parametrize(
        "fault",
        [each for each in MetricsFault if each not in (MetricsFault.NONE, MetricsFault.UNSIZED)],
    )
    async def test_an_unreadable_endpoint_is_not_idle_and_delays_no_other(
        self, stand_with: Any, fault: MetricsFault
    ) -> None:
        stand = await stand_with(self.POOL)
        broken, healthy = stand.engines
        broken_name, healthy_name = stand.plan.engines
        await stand.show_usage(0.99)
        broken.faults = replace(broken.faults, metrics=fault)
        ages: list[float] = []

        def is_now(state: str) -> Any:
            def check(seen: Any) -> bool:
                assert stand.state(seen, healthy_name) == "fresh"
                assert seen.of("class_closed", pool="*", class_="P2") == 1
                ages.append(seen.of("scrape_age_seconds", pool="*", endpoint=healthy_name))
                return bool(stand.state(seen, broken_name) == state)

            return check

        for state in ("stale", "unknown"):
            await stand.until(is_now(state), f"a reading that is {state}")
            shed = await stand.post(CHAT, x_tenant_id="marketing")
            assert shed.headers["x-tidegate-reason"] == "kv_watermark"
            assert (await stand.post(CHAT, x_tenant_id="pay")).status_code == 200
        assert max(ages) < 0.5

        # Only what the healthy one says counts now, and it opens the class again.
        healthy.faults = replace(healthy.faults, kv_usage=0.1)
        await stand.until(
            lambda seen: seen.of("class_closed", pool="*", class_="P2") == 0, "P2 open again"
        )
        broken.faults = replace(broken.faults, metrics=MetricsFault.NONE)
        await stand.until(
            lambda seen: stand.state(seen, broken_name) == "fresh", "a fresh reading again"
        )

    async def test_where_nothing_can_be_read_concurrency_still_limits(
        self, stand_with: Any
    ) -> None:
        pool = self.POOL.replace("scrape:", "max_concurrency: 5\n    scrape:")
        stand = await stand_with(pool)
        for engine in stand.engines:
            engine.faults = replace(engine.faults, metrics=MetricsFault.HANG)
        await stand.until(
            lambda seen: all(stand.state(seen, each) == "unknown" for each in stand.plan.engines),
            "nothing known",
        )
        assert (await stand.metrics()).of("free_ratio_observed", pool="*") is None

        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(stand.post(STREAM, x_tenant_id="service")) for _ in range(4)
            ]
            await stand.until(lambda seen: seen.of("in_flight", pool="*") == 4, "four in flight")
            shed = await stand.post(CHAT, x_tenant_id="marketing")
            assert shed.headers["x-tidegate-reason"] == "concurrency"
            for each in running:
                each.cancel()
        await stand.settled()


class TestFlood:
    CALLS, AT_ONCE = 2000, 200

    async def test_shed_calls_leave_nothing_behind(self, stand: Any) -> None:
        await stand.show_usage(0.99)
        left = iter(range(self.CALLS))
        seen: set[tuple[int, str]] = set()
        ids: set[str] = set()

        # httpx would take longer than all the rest together.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

            async def caller() -> None:
                headers = {"x-tenant-id": "marketing"}
                for _ in left:
                    async with client.post(stand.url + PATH, json=CHAT, headers=headers) as reply:
                        seen.add((reply.status, reply.headers["x-tidegate-reason"]))
                        ids.add((await reply.json())["id"])

            await asyncio.gather(*(caller() for _ in range(self.AT_ONCE)))

        assert seen == {(200, "kv_watermark")}
        assert len(ids) == self.CALLS
        assert await stand.received() == []
        await stand.settled()
        counted = await stand.metrics()
        assert stand.grown(counted, "decisions_total", verdict="shed") == self.CALLS
        assert stand.grown(counted, "decisions_total", verdict="admit") == 0


async def test_envoys_streams_end_gracefully_because_a_reset_one_costs_memory_for_ever(
    stand: Any,
) -> None:
    before = await stand.envoy("cluster.tidegate.upstream_rq_tx_reset")
    await stand.show_usage(0.99)
    for tenant in ("pay", "marketing"):
        await stand.post({**CHAT, "max_tokens": 1}, x_tenant_id=tenant)
    _, writer = await connect(stand)
    writer.write(raw_call(STREAM))
    await stand.until(lambda seen: seen.of("in_flight", pool="*") == 1, "the stream is let in")
    abort(writer)
    await stand.settled()
    assert await stand.envoy("cluster.tidegate.upstream_rq_tx_reset") == before
