"""Calls to an emulated server, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.emulator import Emulator

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
