"""What Tidegate takes for granted about vLLM, asked of a real one.

Each test is one fact; where a new vLLM breaks one, the code that rests on it must follow. Only
order and final state are asserted: how fast an engine is says nothing here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.vllm.servers import BLOCK_SIZE, MODEL, SLOTS, Server, vllm_servers

pytestmark = pytest.mark.vllm

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG = 4000
"""Tokens that keep a slot busy until the test has seen what it wants and leaves."""
ROOM = SLOTS * 4096 // BLOCK_SIZE
"""Blocks for a long request in every slot."""
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    running: float
    waiting: float
    kv_usage: float


IDLE = Load(0, 0, 0)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Server]]:
    """Servers with more room than usual, so that no state ends before a test has seen it."""
    room = ("--max-model-len", "4096", "--num-gpu-blocks-override", str(ROOM))
    with vllm_servers(2, room) as servers:
        yield servers


@pytest.fixture
async def engine(engines: list[Server]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first server, which is idle before and after each test."""
    async with httpx.AsyncClient(base_url=engines[0].url, timeout=PATIENCE) as client:
        await until(client, IDLE.__eq__)
        yield client


async def metrics(engine: httpx.AsyncClient) -> dict[str, Metric]:
    page = (await engine.get("/metrics")).raise_for_status().text
    return {family.name: family for family in text_string_to_metric_families(page)}


async def load(engine: httpx.AsyncClient) -> Load:
    page = await metrics(engine)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return Load(*(page[name].samples[0].value for name in names))


async def until(engine: httpx.AsyncClient, wanted: Callable[[Load], bool]) -> Load:
    """Poll until the load is as wanted; fail with the last one seen."""
    deadline = time.monotonic() + PATIENCE
    while not wanted(seen := await load(engine)):
        assert time.monotonic() < deadline, f"still {seen}"
        await asyncio.sleep(0.02)
    return seen


def chat(**fields: Any) -> dict[str, Any]:
    """A body whose answer has exactly as many tokens as asked for."""
    messages = [{"role": "user", "content": "def main"}]
    return {"model": MODEL, "messages": messages, "ignore_eos": True} | fields


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "def main", "ignore_eos": True} | fields


async def answer(engine: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await engine.post(path, json=body)
    assert reply.status_code == 200, reply.text
    decoded: dict[str, Any] = reply.json()
    return decoded


async def completion_tokens(engine: httpx.AsyncClient, path: str, body: dict[str, Any]) -> int:
    tokens: int = (await answer(engine, path, body))["usage"]["completion_tokens"]
    return tokens


@asynccontextmanager
async def open_stream(engine: httpx.AsyncClient, **fields: Any) -> AsyncIterator[httpx.Response]:
    """A stream whose first bytes have come; leaving the context closes the connection."""
    body = chat(stream=True, max_tokens=LONG) | fields
    async with engine.stream("POST", CHAT, json=body) as reply:
        assert reply.status_code == 200
        yield reply


async def events(engine: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The data of each event of a streamed answer, with the framing checked on the raw bytes."""
    reply = await engine.post(path, json=body | {"stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *frames, rest = reply.content.split(b"\n\n")
    assert rest == b""
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)
    return [frame.removeprefix(b"data: ").decode() for frame in frames]


# --- what is scraped


async def test_load_gauges_bear_the_names_and_labels_we_scrape(engine: httpx.AsyncClient) -> None:
    page = await metrics(engine)

    for name, kind in (
        ("vllm:kv_cache_usage_perc", "gauge"),
        ("vllm:num_requests_running", "gauge"),
        ("vllm:num_requests_waiting", "gauge"),
        ("vllm:num_preemptions", "counter"),
    ):
        assert page[name].type == kind
        assert page[name].samples[0].labels == {"engine": "0", "model_name": MODEL}


async def test_cache_size_is_in_the_labels_of_an_info_series(engine: httpx.AsyncClient) -> None:
    (sample,) = (await metrics(engine))["vllm:cache_config_info"].samples

    labels = {key: sample.labels[key] for key in ("engine", "block_size", "num_gpu_blocks")}
    assert labels == {
        "engine": "0",
        "block_size": str(BLOCK_SIZE),
        "num_gpu_blocks": str(ROOM),
    }
    assert "model_name" not in sample.labels


async def test_kv_usage_rises_while_requests_run(engine: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as clients:
        for _ in range(4):
            await clients.enter_async_context(open_stream(engine))
        early = await until(engine, lambda now: now.running == 4 and now.kv_usage > 0)
        await until(engine, lambda now: now.kv_usage > early.kv_usage)


async def test_a_finished_request_leaves_no_blocks_in_use(engine: httpx.AsyncClient) -> None:
    assert await completion_tokens(engine, CHAT, chat(max_tokens=100)) == 100

    await until(engine, IDLE.__eq__)


async def test_servers_report_their_own_load_only(
    engine: httpx.AsyncClient, engines: list[Server]
) -> None:
    other = httpx.AsyncClient(base_url=engines[1].url, timeout=PATIENCE)
    async with other, open_stream(engine):
        await until(engine, lambda now: now.running == 1)
        assert await load(other) == IDLE


# --- disconnects


async def test_a_client_that_leaves_frees_its_blocks(engine: httpx.AsyncClient) -> None:
    async def generated() -> float:
        return (await metrics(engine))["vllm:generation_tokens"].samples[0].value

    before = await generated()
    async with AsyncExitStack() as clients:
        for _ in range(4):
            await clients.enter_async_context(open_stream(engine))
        await until(engine, lambda now: now.running == 4 and now.kv_usage > 0)

    await until(engine, IDLE.__eq__)
    assert await generated() - before < 4 * LONG


async def test_a_waiting_client_that_leaves_frees_its_place(engine: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as clients:
        for _ in range(SLOTS):
            await clients.enter_async_context(open_stream(engine))
        queued = asyncio.create_task(answer(engine, CHAT, chat(max_tokens=4)))
        await until(engine, lambda now: (now.running, now.waiting) == (SLOTS, 1))

        queued.cancel()

        await until(engine, lambda now: (now.running, now.waiting) == (SLOTS, 0))


# --- priority


async def test_lower_priority_values_leave_the_queue_first(engine: httpx.AsyncClient) -> None:
    order: list[int] = []

    async def queue(priority: int) -> None:
        await answer(engine, CHAT, chat(max_tokens=4, priority=priority))
        order.append(priority)

    async with AsyncExitStack() as clients, asyncio.TaskGroup() as group:
        async with open_stream(engine, priority=0):
            for _ in range(SLOTS - 1):
                await clients.enter_async_context(open_stream(engine, priority=0))
            for place, priority in enumerate((20, 10, 0), start=1):
                group.create_task(queue(priority))
                await until(engine, partial(lambda place, now: now.waiting == place, place))
        # One slot is free from here on, and the three take it one after the other.
        await until(engine, lambda now: now.waiting == 0)

    assert order == [0, 10, 20]


async def test_a_full_house_is_not_preempted_for_priority(engine: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as clients:
        for _ in range(SLOTS):
            await clients.enter_async_context(open_stream(engine, priority=20))
        urgent = asyncio.create_task(answer(engine, CHAT, chat(max_tokens=4, priority=0)))

        await until(engine, lambda now: (now.running, now.waiting) == (SLOTS, 1))
        assert not urgent.done()

    await urgent


@pytest.mark.parametrize("priority", [-5, 0, 20])
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_integer_priorities_are_accepted(
    engine: httpx.AsyncClient, path: str, body: dict[str, Any], priority: int
) -> None:
    assert (
        await completion_tokens(engine, path, body | {"max_tokens": 2, "priority": priority}) == 2
    )


@pytest.mark.parametrize("priority", ["high", 1.5, None])
async def test_other_priorities_are_refused(engine: httpx.AsyncClient, priority: object) -> None:
    assert (await engine.post(CHAT, json=chat(priority=priority))).status_code == 400


# --- how long an answer may be


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 5, "n": 2}, 10),
    ],
)
async def test_chat_length(engine: httpx.AsyncClient, fields: dict[str, int], tokens: int) -> None:
    assert await completion_tokens(engine, CHAT, chat(**fields)) == tokens


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 16),
        ({"max_completion_tokens": 5}, 16),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "n": 2}, 10),
        ({"max_tokens": 5, "prompt": ["def", "class", "import"]}, 15),
    ],
)
async def test_completions_length(
    engine: httpx.AsyncClient, fields: dict[str, Any], tokens: int
) -> None:
    assert await completion_tokens(engine, COMPLETIONS, completion(**fields)) == tokens


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, 5000])
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_impossible_max_tokens_are_refused(
    engine: httpx.AsyncClient, path: str, body: dict[str, Any], value: object
) -> None:
    reply = await engine.post(path, json=body | {"max_tokens": value})

    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == 400


# --- streams


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_a_stream_ends_with_its_reason_then_done(
    engine: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    *chunks, last, done = await events(engine, path, body | {"max_tokens": 3})

    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert {json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks} == {None}
    assert {json.loads(chunk).get("usage") for chunk in (*chunks, last)} == {None}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_usage_comes_in_a_chunk_of_its_own_before_done(
    engine: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    asked = {"max_tokens": 3, "stream_options": {"include_usage": True}}

    *chunks, usage, done = await events(engine, path, body | asked)

    assert done == "[DONE]"
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"]["completion_tokens"] == 3
    assert all(json.loads(chunk)["choices"] for chunk in chunks)


async def test_a_chat_stream_opens_with_the_role(engine: httpx.AsyncClient) -> None:
    first, *_ = await events(engine, CHAT, chat(max_tokens=3))

    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}


# --- bodies


async def test_a_chunked_body_is_read_like_any_other(engine: httpx.AsyncClient) -> None:
    whole = json.dumps(chat(max_tokens=3)).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 7):
            yield whole[start : start + 7]

    reply = await engine.post(CHAT, content=pieces(), headers={"content-type": "application/json"})

    assert reply.request.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in reply.request.headers
    assert reply.json()["usage"]["completion_tokens"] == 3


async def test_a_model_it_does_not_serve_is_404(engine: httpx.AsyncClient) -> None:
    reply = await engine.post(CHAT, json=chat(model="another"))

    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "NotFoundError"
