"""The emulated server, over real connections."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.emulator import Emulator
from tests.sim.emulating import CHAT, PROMPT, Start, get, metrics, post, until


async def test_compressed_bodies_are_read(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    url = f"{emulator.url}/v1/chat/completions"
    packed = gzip.compress(json.dumps(CHAT).encode())
    gzipped = {"content-encoding": "gzip"}
    async with http.post(url, data=packed, headers=gzipped) as response:
        assert response.status == 200
    async with http.post(url, data=b"no gzip", headers=gzipped) as response:
        assert response.status == 400
    bomb = gzip.compress(b"0" * (33 * 1024 * 1024))
    async with http.post(url, data=bomb, headers=gzipped) as response:
        assert response.status == 413
    async with http.post(url, data=b"x", headers={"content-encoding": "br"}) as response:
        assert response.status == 415


async def test_requests_are_kept_as_received(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    body = b'{"model":"tiny",  "messages":[]}'
    path = "/v1/chat/completions?a=b%20c"
    async with http.post(f"{emulator.url}{path}", data=body, headers={"X-oDD": "é"}):
        pass
    big = b" " * (16 * 1024 * 1024)
    async with http.post(f"{emulator.url}/v1/completions", data=io.BytesIO(big)) as response:
        assert response.status == 400
    first, second = (await get(http, emulator, "/_emulator/requests"))["requests"]
    assert (first["method"], first["path"]) == ("POST", "/v1/chat/completions?a=b%20c")
    assert ["X-oDD", "é".encode().decode("latin-1")] in first["headers"]
    assert base64.b64decode(first["body_base64"]) == body
    assert first["body_sha256"] == hashlib.sha256(body).hexdigest()
    assert (second["body_length"], second["body_base64"]) == (len(big), None)
    assert second["body_sha256"] == hashlib.sha256(big).hexdigest()


@pytest.mark.parametrize(("too_many", "status"), [(0, 400), (1, 413)])
async def test_bodies_up_to_32_mib_are_read(
    emulator: Emulator, http: aiohttp.ClientSession, too_many: int, status: int
) -> None:
    body = io.BytesIO(b" " * (32 * 1024 * 1024 + too_many))
    async with http.post(f"{emulator.url}/v1/completions", data=body) as response:
        assert response.status == status


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_frees_its_blocks(
    start: Start, http: aiohttp.ClientSession, stream: bool
) -> None:
    emulator = await start(step=0.002)
    body = CHAT | {"max_tokens": 2000, "stream": stream}
    call = asyncio.create_task(post(http, emulator, "/v1/chat/completions", body))
    await until(lambda: emulator.engine.generation_tokens_total > 2)
    assert emulator.engine.running == 1
    call.cancel()
    await until(lambda: emulator.engine.idle)
    assert (await get(http, emulator, "/_emulator/state"))["kv_usage"] == 0.0
    page = await metrics(http, emulator)
    assert page["vllm:request_success_total/abort"] == 0.0  # vLLM does not count them either


async def test_client_that_leaves_the_queue_is_forgotten(
    start: Start, http: aiohttp.ClientSession
) -> None:
    emulator = await start(max_num_seqs=1, step=0.002)
    body = CHAT | {"max_tokens": 2000}
    path = "/v1/chat/completions"
    first = asyncio.create_task(post(http, emulator, path, body))
    await until(lambda: emulator.engine.running == 1)
    second = asyncio.create_task(post(http, emulator, path, body))
    await until(lambda: emulator.engine.waiting == 1)
    second.cancel()
    await until(lambda: emulator.engine.waiting == 0)
    assert emulator.engine.running == 1
    first.cancel()


async def test_metrics_page(start: Start, http: aiohttp.ClientSession) -> None:
    emulator = await start(step=0.002)
    await post(http, emulator, "/v1/completions", PROMPT)
    call = asyncio.create_task(
        post(http, emulator, "/v1/completions", PROMPT | {"max_tokens": 2000})
    )
    await until(lambda: emulator.engine.running == 1)
    page = await metrics(http, emulator)
    call.cancel()
    assert page["vllm:num_requests_running"] == 1.0
    assert page["vllm:num_requests_waiting"] == 0.0
    assert page["vllm:num_requests_waiting_by_reason/capacity"] == 0.0
    assert page["vllm:kv_cache_usage_perc"] >= 1 / 127  # one block of 128 is the null block
    assert page["vllm:num_preemptions_total"] == 0.0
    assert page["vllm:generation_tokens_total"] >= 3.0
    assert page["vllm:request_success_total/length"] == 1.0
    async with http.get(f"{emulator.url}/metrics") as response:
        text = await response.text()
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(text)}
    labels = families["vllm:cache_config_info"].samples[0].labels
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("32", "128")
    gauge = families["vllm:kv_cache_usage_perc"]
    assert gauge.samples[0].labels == {"engine": "0", "model_name": "tiny"}
    assert (gauge.type, gauge.documentation) == (
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
    )


async def test_other_paths(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{emulator.url}/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    assert await get(http, emulator, "/version") == {"version": "0.32.0"}
    models = await get(http, emulator, "/v1/models")
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("tiny", 2048)]
    _, raw = await post(http, emulator, "/tokenize", {"model": "tiny", "prompt": "abcdefg"})
    assert json.loads(raw) == {
        "count": 2,
        "max_model_len": 2048,
        "tokens": [0x61626364, 0x656667],
        "token_strs": None,
    }


async def test_high_priority_overtakes_the_queue(start: Start, http: aiohttp.ClientSession) -> None:
    emulator = await start(max_num_seqs=1, step=0.002)
    ended: list[str] = []

    async def call(name: str, priority: int, tokens: int) -> None:
        body = PROMPT | {"priority": priority, "max_tokens": tokens}
        await post(http, emulator, "/v1/completions", body)
        ended.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(call("running", 9, 60))
        await until(lambda: emulator.engine.running == 1)
        group.create_task(call("low", 9, 2))
        await until(lambda: emulator.engine.waiting == 1)
        group.create_task(call("high", 0, 2))
    assert ended == ["running", "high", "low"]


async def test_emulator_stops_while_calls_run(start: Start, http: aiohttp.ClientSession) -> None:
    emulator = await start(step=0.002)
    body = CHAT | {"max_tokens": 2000, "stream": True}
    async with http.post(f"{emulator.url}/v1/chat/completions", json=body) as response:
        await response.content.readany()
        await emulator.__aexit__(None, None, None)
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert emulator.engine.idle
