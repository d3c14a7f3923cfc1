"""The emulated server, over real connections."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.emulator import Emulator
from extproc.sim.emulator.faults import Faults, FaultsError, MetricsFault, Reset

Start = Callable[..., Awaitable[Emulator]]
HELLO = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 3, "ignore_eos": True}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "abcd", "max_tokens": 3, "ignore_eos": True}
RESPONSE: dict[str, Any] = {"input": "hello", "max_output_tokens": 3, "ignore_eos": True}
MESSAGE: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 3}


async def post(
    http: aiohttp.ClientSession, emulator: Emulator, path: str, body: dict[str, Any], **headers: str
) -> tuple[aiohttp.ClientResponse, bytes]:
    async with http.post(f"{emulator.url}{path}", json=body, headers=headers) as response:
        return response, await response.read()


async def get(http: aiohttp.ClientSession, emulator: Emulator, path: str) -> Any:
    async with http.get(f"{emulator.url}{path}") as response:
        assert response.status == 200
        return await response.json()


async def metrics(http: aiohttp.ClientSession, emulator: Emulator) -> dict[str, float]:
    """Return the samples of the page; of labels only those that tell samples apart."""
    async with http.get(f"{emulator.url}/metrics") as response:
        page = await response.text()
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            reasons = [v for k, v in sample.labels.items() if "reason" in k]
            samples["/".join([sample.name, *reasons])] = sample.value
    return samples


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - gauges have no events
            await asyncio.sleep(0.001)


def events(raw: bytes) -> list[Any]:
    """Return the data of server-sent events; JSON is parsed."""
    data = [
        line[6:]
        for event in raw.decode().split("\n\n")
        for line in event.split("\n")
        if line.startswith("data: ")
    ]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


async def test_chat(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    response, raw = await post(http, emulator, "/v1/chat/completions", CHAT)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["server"] == "uvicorn"
    assert response.headers["vary"] == "Origin"
    assert "x-request-id" not in response.headers
    body = json.loads(raw)
    assert list(body) == [
        "id",
        "object",
        "created",
        "model",
        "choices",
        "service_tier",
        "system_fingerprint",
        "usage",
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    ]
    text = body["choices"][0]["message"].pop("content")
    assert len(text.split()) == 3
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 14,
        "total_tokens": 17,
        "completion_tokens": 3,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


async def test_chat_stream_ends_with_the_fingerprint(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    response, raw = await post(http, emulator, "/v1/chat/completions", CHAT | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    role, *deltas, done = events(raw)
    assert role["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert list(role)[-2:] == ["prompt_token_ids", "prompt_text"]
    assert done == "[DONE]"
    assert "".join(d["choices"][0]["delta"]["content"] for d in deltas).count(" ") == 3
    last = deltas[-1]
    assert list(last) == ["id", "object", "created", "model", "choices", "system_fingerprint"]
    assert list(last["choices"][0]) == [
        "index",
        "delta",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "token_ids",
    ]
    assert last["choices"][0]["finish_reason"] == "length"
    assert {chunk["id"] for chunk in (role, *deltas)} == {role["id"]}


async def test_chat_stream_with_usage_in_every_chunk(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = CHAT | {"stream": True, "stream_options": options}
    _, raw = await post(http, emulator, "/v1/chat/completions", body)
    role, *deltas, usage, _ = events(raw)
    counts = {"prompt_tokens": 14, "total_tokens": 14, "completion_tokens": 0}
    assert role["usage"] == counts | {"completion_tokens_details": None}
    assert deltas[-1]["usage"]["completion_tokens"] == 3
    assert "system_fingerprint" not in deltas[-1]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 14, "total_tokens": 17, "completion_tokens": 3}
    assert list(usage)[-1] == "system_fingerprint"


async def test_slow_reader_gets_every_token(start: Start) -> None:
    emulator = await start(step=0.0)
    body = json.dumps(CHAT | {"stream": True, "n": 8, "max_tokens": 2000}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", emulator.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        await until(lambda: emulator.engine.generation_tokens_total == 16_000)
        raw = await reader.read()
        writer.close()
    assert raw.count(b'"finish_reason":"length"') == 8
    assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_several_choices(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    _, raw = await post(http, emulator, "/v1/chat/completions", CHAT | {"n": 2})
    body = json.loads(raw)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 6
    _, raw = await post(http, emulator, "/v1/chat/completions", CHAT | {"n": 2, "stream": True})
    chunks = events(raw)[:-1]
    assert [c["choices"][0]["index"] for c in chunks[:2]] == [0, 1]
    ends = [c for c in chunks if c["choices"][0]["finish_reason"]]
    assert ["system_fingerprint" in chunk for chunk in ends] == [False, True]


async def test_completions(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    body = PROMPT | {"prompt": ["abcd", "efgh"]}
    _, raw = await post(http, emulator, "/v1/completions", body)
    reply = json.loads(raw)
    assert (reply["object"], len(reply["choices"])) == ("text_completion", 2)
    assert list(reply["choices"][1]) == [
        "index",
        "text",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "token_ids",
        "prompt_logprobs",
        "prompt_token_ids",
        "routed_experts",
    ]
    assert reply["usage"]["prompt_tokens"] == 2
    _, raw = await post(http, emulator, "/v1/completions", PROMPT | {"stream": True})
    *chunks, done = events(raw)
    assert done == "[DONE]"
    assert list(chunks[0]["choices"][0]) == [
        "index",
        "text",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "prompt_token_ids",
        "token_ids",
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = PROMPT | {"stream": True, "stream_options": options}
    _, raw = await post(http, emulator, "/v1/completions", body)
    counts = {"prompt_tokens": 1, "total_tokens": 4, "completion_tokens": 3}
    assert [event["usage"] for event in events(raw)[-3:-1]] == [counts, counts]


async def test_responses(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    _, raw = await post(http, emulator, "/v1/responses", RESPONSE)
    body = json.loads(raw)
    assert (body["object"], body["status"]) == ("response", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["output_tokens"] == 3
    _, raw = await post(http, emulator, "/v1/responses", RESPONSE | {"stream": True})
    data = events(raw)
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    kinds = [event["type"] for event in data]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert raw.startswith(b'event: response.created\ndata: {"response":{"id":"resp_')


async def test_messages(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    _, raw = await post(http, emulator, "/v1/messages", MESSAGE)
    body = json.loads(raw)
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("content")[0]["type"] == "text"
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 14, "output_tokens": 3},
    }
    _, raw = await post(http, emulator, "/v1/messages", MESSAGE | {"stream": True})
    kinds = [event["type"] for event in events(raw)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_equal_prompts_get_equal_texts_of_drawn_length(
    emulator: Emulator, http: aiohttp.ClientSession
) -> None:
    body = {"model": "tiny", "messages": HELLO}
    replies = [
        json.loads((await post(http, emulator, "/v1/chat/completions", body))[1]) for _ in "ab"
    ]
    first, second = (reply["choices"][0] for reply in replies)
    assert first == second
    assert first["finish_reason"] == "stop"
    assert replies[0]["id"] != replies[1]["id"]


async def test_request_id(start: Start, http: aiohttp.ClientSession) -> None:
    emulator = await start(request_id_headers=True)
    path = "/v1/chat/completions"
    response, raw = await post(http, emulator, path, CHAT, **{"x-request-id": "abc-123"})
    assert json.loads(raw)["id"] == "chatcmpl-abc-123"
    assert response.headers["x-request-id"] == "abc-123"
    response, _ = await post(http, emulator, path, CHAT)
    assert len(response.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("form", "report"),
    [
        (
            "JSON",
            'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.5}}',
        ),
        (
            "text",
            "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.5",
        ),
        ("xml", None),
    ],
)
async def test_load_report(
    start: Start, http: aiohttp.ClientSession, form: str, report: str | None
) -> None:
    emulator = await start(faults=Faults(kv_usage=0.5))
    asked = {"endpoint-load-metrics-format": form}
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PROMPT)):
        response, _ = await post(http, emulator, path, body, **asked)
        assert response.headers.get("endpoint-load-metrics") == report
        response, _ = await post(http, emulator, path, body | {"stream": True}, **asked)
        assert "endpoint-load-metrics" not in response.headers
    response, _ = await post(http, emulator, "/v1/messages", MESSAGE, **asked)
    assert "endpoint-load-metrics" not in response.headers


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
