"""The emulated server's errors, those of its clients and those that it is told to make."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.emulator import Emulator
from extproc.sim.emulator.faults import Faults, FaultsError, MetricsFault, Reset
from tests.sim.emulating import CHAT, HELLO, MESSAGE, Start, get, metrics, post


async def test_errors_of_the_server(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{emulator.url}/nope") as response:
        assert (response.status, await response.read()) == (404, b'{"detail":"Not Found"}')
        assert response.headers["content-type"] == "application/json"
    async with http.get(f"{emulator.url}/v1/chat/completions") as response:
        assert (response.status, response.headers["allow"]) == (405, "POST")
        assert await response.read() == b'{"detail":"Method Not Allowed"}'


async def test_errors_have_the_shape_of_the_endpoint(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    response, raw = await post(http, emulator, "/v1/chat/completions", CHAT | {"max_tokens": 0})
    assert (response.status, raw) == (
        400,
        (
            b'{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"'
            b',"type":"BadRequestError","param":"max_tokens","code":400}}'
        ),
    )
    response, raw = await post(http, emulator, "/v1/messages", MESSAGE | {"model": "nope"})
    assert (response.status, raw) == (
        404,
        (
            b'{"type":"error","error":{"type":"NotFoundError",'
            b'"message":"The model `nope` does not exist. Valid aliases: tiny."}}'
        ),
    )
    response, raw = await post(http, emulator, "/v1/messages", {"model": "tiny", "messages": []})
    assert response.status == 400
    assert raw.endswith(b'"type":"Bad Request","param":"body.max_tokens","code":400}}')


async def test_text_that_is_no_text_is_answered_all_the_same(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    url = f"{emulator.url}/v1/chat/completions"
    async with http.post(url, data=b'{"messages":[],"model":"\\ud800"}') as response:
        assert response.status == 404
        assert (await response.json())["error"]["message"].startswith("The model `?` does not")
    headers = {"x-request-id": "é"}
    async with http.post(url, json=CHAT, headers=headers) as response:
        assert (await response.json())["id"].isascii()


async def test_busy_engine_refuses(start: Start, http: aiohttp.ClientSession) -> None:
    emulator = await start(max_num_queued_reqs=1)
    response, raw = await post(http, emulator, "/v1/chat/completions", CHAT | {"n": 2})
    assert (response.status, raw) == (
        503,
        (
            b'{"error":{"message":"The engine is currently busy and cannot accept new requests. Please '
            b'try again later or on a different instance.","type":"Service Unavailable","param":null,'
            b'"code":503}}'
        ),
    )
    assert emulator.engine.idle  # the one of the two that had room is gone as well
    page = await metrics(http, emulator)
    assert page["vllm:admission_rejections_total/max_num_queued_reqs"] == 1.0


async def set_faults(http: aiohttp.ClientSession, emulator: Emulator, **faults: object) -> int:
    async with http.post(f"{emulator.url}/_emulator/faults", json=faults) as response:
        return response.status


async def test_metrics_faults(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    assert await set_faults(http, emulator, metrics="error") == 200
    async with http.get(f"{emulator.url}/metrics") as response:
        assert response.status == 500
    await set_faults(http, emulator, metrics="garbage")
    async with http.get(f"{emulator.url}/metrics") as response:
        garbage = (await response.read()).decode("latin-1")
    with pytest.raises(ValueError):
        list(text_string_to_metric_families(garbage))
    await set_faults(http, emulator, metrics="unsized")
    page = await metrics(http, emulator)
    assert "vllm:kv_cache_usage_perc" in page
    assert "vllm:cache_config_info" not in page
    await set_faults(http, emulator, metrics="foreign")
    assert list(await metrics(http, emulator)) == ["process_start_time_seconds"]
    await set_faults(http, emulator, metrics="hang")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await metrics(http, emulator)
    await set_faults(http, emulator, metrics="none", kv_usage=0.875)
    assert (await metrics(http, emulator))["vllm:kv_cache_usage_perc"] == 0.875


async def test_a_header_says_how_long_an_answer_is(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 50}
    lengths = []
    for wanted in ("7", "60", "x"):
        headers = {"x-emulator-output-tokens": wanted}
        _, answer = await post(http, emulator, "/v1/chat/completions", body, **headers)
        choice = json.loads(answer)["choices"][0]
        lengths.append((json.loads(answer)["usage"]["completion_tokens"], choice["finish_reason"]))
    assert lengths[:2] == [(7, "stop"), (50, "length")]
    assert lengths[2][0] <= 50  # drawn


async def test_faults_of_calls(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    path = "/v1/chat/completions"
    await set_faults(http, emulator, reset="before_first_byte")
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(http, emulator, path, CHAT)
    await set_faults(http, emulator, reset="mid_stream")
    for stream in (True, False):
        async with http.post(f"{emulator.url}{path}", json=CHAT | {"stream": stream}) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await response.read()
    await set_faults(http, emulator, reset="none", status=502)
    response, _ = await post(http, emulator, path, CHAT)
    assert response.status == 502
    await set_faults(http, emulator, status=None, latency=0.05)
    before = asyncio.get_running_loop().time()
    response, _ = await post(http, emulator, path, CHAT)
    assert response.status == 200
    assert asyncio.get_running_loop().time() - before >= 0.05
    assert emulator.engine.idle


async def test_faults_can_be_read_and_bad_ones_are_refused(
    start: Start, http: aiohttp.ClientSession
) -> None:
    emulator = await start(faults=Faults(metrics=MetricsFault.HANG))
    assert await set_faults(http, emulator, latency=0.25) == 200
    assert await get(http, emulator, "/_emulator/faults") == {
        "metrics": "hang",
        "kv_usage": None,
        "latency": 0.25,
        "status": None,
        "reset": "none",
        "text": "",
        "stream": [],
    }
    assert await set_faults(http, emulator, latency=-1) == 400


@pytest.mark.parametrize(
    "changes",
    [
        [],
        {"metrics": "odd"},
        {"reset": None},
        {"latency": "x"},
        {"latency": float("inf")},
        {"kv_usage": 2},
        {"status": 200},
        {"stream": ["upside_down"]},
        {"stream": 7},
        {"other": 1},
    ],
)
def test_impossible_faults(changes: object) -> None:
    with pytest.raises(FaultsError):
        Faults().changed(changes)


def test_faults_change_by_name() -> None:
    faults = Faults(latency=1.0).changed({"reset": "mid_stream", "metrics": "error"})
    assert faults == Faults(latency=1.0, reset=Reset.MID_STREAM, metrics=MetricsFault.ERROR)
