"""Streams: how evenly tokens come through a gateway, and what it costs to edit one.

Rules this module keeps:

* The engine sends each stream's tokens at an even rate, so that what is uneven was made on the way;
  its own unevenness, and this client's, are in the floor of the same round as well.
* The first second does not count: so many streams at once do not begin in a gateway that is at work.
* Tokens that come together are as late as the first of them: the gaps between them are zero.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import psutil

from bench.measure import cpu_seconds
from bench.stand import TASK_EDITED, TENANT_HEADER, Gateway
from bench.upstream import TOKENS_PER_SECOND
from extproc import contract

STREAMS = 256
EDITED_STREAMS = 32
_TOKEN = b'"content":"'
_END = b"data: [DONE]\n\n"
_PATIENCE = 30.0


class BrokenStreamError(RuntimeError):
    """A stream ended without its last event, or had other tokens than were asked for."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between a stream's tokens, over all streams; CPU seconds of the processor per token."""

    p50: float
    p99: float
    cpu: float


async def gaps(
    gateway: Gateway,
    tenant: str,
    *,
    streams: int,
    seconds: float,
    clock: Callable[[], float],
    edited: bool = False,
) -> Gaps:
    """Run streams side by side and return how evenly their tokens came.

    Raises:
        BrokenStreamError: a stream did not come whole.
    """
    process = None if gateway.processor is None else psutil.Process(gateway.processor)
    tokens = round((seconds + 1) * TOKENS_PER_SECOND)
    request = _request(gateway, tenant, tokens, edited=edited)
    url = urlsplit(gateway.url)
    loop = asyncio.get_running_loop()
    running = [_Stream(request, tokens, clock, loop.create_future()) for _ in range(streams)]
    before = 0.0 if process is None else cpu_seconds(process)
    for number, each in enumerate(running):
        await loop.create_connection(partial(_given, each), url.hostname or "", url.port or 80)
        # Spread over a token's time, as independent callers are.
        await asyncio.sleep(0 if number % 8 else 8 / streams / TOKENS_PER_SECOND)
    async with asyncio.timeout(seconds + _PATIENCE):
        found = [gap for each in running for gap in (await each.done)[TOKENS_PER_SECOND:]]
    spent = 0.0 if process is None else cpu_seconds(process) - before
    found.sort()
    at = len(found) - 1
    return Gaps(found[at // 2], found[round(at * 0.99)], spent / (streams * tokens))


def _given(stream: _Stream) -> _Stream:
    return stream


def _request(gateway: Gateway, tenant: str, tokens: int, *, edited: bool) -> bytes:
    messages = [{"role": "user", "content": "word " * 100}]
    call = {"model": "bench", "messages": messages, "max_tokens": tokens, "stream": True}
    body = json.dumps(call).encode()
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: {urlsplit(gateway.url).netloc}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"{TENANT_HEADER}: {tenant}",
        *([f"{contract.TASK_HEADER}: {TASK_EDITED}"] if edited else []),
        "",
        "",
    ]
    return "\r\n".join(head).encode() + body


class _Stream(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(
        self,
        request: bytes,
        tokens: int,
        clock: Callable[[], float],
        done: asyncio.Future[list[float]],
    ) -> None:
        self.done = done
        self._request = request
        self._tokens = tokens
        self._clock = clock
        self._gaps: list[float] = []
        self._last = 0.0
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note when tokens come."""
        seen = data.count(_TOKEN)
        if seen:
            now = self._clock()
            if self._last:
                self._gaps.append(now - self._last)
            self._gaps += [0.0] * (seen - 1)
            self._last = now
        self._tail = (self._tail + data)[-64:]
        if _END in self._tail:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so where it is too early."""
        del exc
        self._finish()

    def _finish(self) -> None:
        if self.done.done():
            return
        if len(self._gaps) == self._tokens - 1:
            self.done.set_result(self._gaps)
        else:
            self.done.set_exception(BrokenStreamError(f"{len(self._gaps) + 1} of {self._tokens}"))
        if self._transport is not None:
            self._transport.close()
