"""Odd streams say what plain ones say."""

from __future__ import annotations

import json
import zlib
from typing import Any

import aiohttp
import pytest

from extproc.openai.sse import EventReader
from extproc.sim.emulator import Emulator
from extproc.sim.emulator.oddities import Oddity, Wire

CALL: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
    "ignore_eos": True,
    "stream": True,
}


async def streamed(
    http: aiohttp.ClientSession, emulator: Emulator, *oddities: str
) -> tuple[bytes, list[Any]]:
    """Return the bytes of a stream, inflated, and what its events say."""
    body = {"stream": oddities}
    async with http.post(f"{emulator.url}/_emulator/faults", json=body) as response:
        assert response.status == 200
    url = f"{emulator.url}/v1/chat/completions"
    async with http.post(url, json=CALL) as response:
        raw = await response.read()
        assert ("content-encoding" in response.headers) == ("gzip" in oddities)
    reader = EventReader()
    said = [event.data for event in [*reader.feed(raw), *reader.end()] if event.data]
    assert said.pop() == b"[DONE]"
    return raw, [json.loads(data) for data in said]


def text_of(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"]["content"] for event in events)


@pytest.mark.parametrize(
    ("oddities", "seen"),
    [
        (("no_space",), b'data:{"'),
        (("crlf",), b"}\r\n\r\n"),
        (("comments",), b": still here\n\ndata: "),
        (("split",), b'data: {"'),
        (("gzip",), b'data: {"'),
        (("no_space", "crlf", "comments", "split", "gzip"), b'\r\n\r\ndata:{"'),
    ],
)
async def test_events_stay_the_same(
    emulator: Emulator, http: aiohttp.ClientSession, oddities: tuple[str, ...], seen: bytes
) -> None:
    _, plain = await streamed(http, emulator)
    raw, odd = await streamed(http, emulator, *oddities)
    assert seen in raw
    assert text_of(odd) == text_of(plain)


async def test_usage_everywhere(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    _, events = await streamed(http, emulator, "usage_everywhere")
    told = [event["usage"]["completion_tokens"] for event in events]
    assert (told[0], told[-1]) == (0, 4)


async def test_a_call_of_a_tool(emulator: Emulator, http: aiohttp.ClientSession) -> None:
    _, events = await streamed(http, emulator, "tool_call")
    deltas = [event["choices"][0]["delta"] for event in events[1:]]
    calls = [delta["tool_calls"][0] for delta in deltas]
    assert calls[0]["function"]["name"] == "lookup"
    assert [call.get("id") for call in calls] == ["call_0"] + [None] * (len(calls) - 1)
    assert len("".join(call["function"]["arguments"] for call in calls).split()) == 4


def test_what_is_written() -> None:
    assert Wire(()).pieces(b"data: 1\n\n") == [b"data: 1\n\n"]
    assert Wire(()).end() == b""
    split = Wire((Oddity.SPLIT, Oddity.CRLF, Oddity.NO_SPACE))
    assert split.pieces(b"data: 12\n\n") == [b"data:12", b"\r\n\r\n"]
    packed = Wire((Oddity.GZIP,))
    inflate = zlib.decompressobj(wbits=31)
    assert [inflate.decompress(piece) for piece in packed.pieces(b"data: 1\n\n")] == [
        b"data: 1\n\n"
    ]
    assert inflate.decompress(packed.end()) == b""
    assert inflate.eof
