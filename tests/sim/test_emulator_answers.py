"""The emulated server's answers, over real connections, beside what vLLM says."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

from extproc.sim.emulator import Emulator
from extproc.sim.emulator.faults import Faults
from tests.sim.emulating import (
    CHAT,
    HELLO,
    MESSAGE,
    PROMPT,
    RESPONSE,
    Start,
    events,
    post,
    until,
)


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
