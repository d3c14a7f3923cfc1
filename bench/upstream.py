"""Engines that cost next to nothing: fixed answers, no model. ``python -m bench.upstream PORT...``.

Their metrics page is as long as vLLM's and says that a tenth of the KV cache is free: the lowest
class is then shed and the highest admitted, by one Tidegate, at the same time. Options say otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

TOKENS_PER_SECOND = 30
"""Of each stream, unless `Settings` say otherwise."""
_CONTENT_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_COMPLETION = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"'
    + b"word "
    * 60
    + b'"},"finish_reason":"stop"}],"usage":{"prompt_tokens":480,"completion_tokens":60,'
    b'"total_tokens":540}}'
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine says of itself.

    Attributes:
        used: share of the KV cache in use, 0..1.
        blocks: all of its KV cache, in blocks of 16 tokens.
        pace: tokens a second of each stream.
    """

    used: float = 0.9
    blocks: int = 40_000
    pace: float = TOKENS_PER_SECOND


DEFAULT = Settings()


def metrics_page(settings: Settings = DEFAULT) -> str:
    """Return a page of about 50 KB, as long as vLLM's own."""
    labels = 'engine="0",model_name="bench"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} 4.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} {settings.used}",
        f"vllm:num_preemptions_total{{{labels}}} 0.0",
        f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{settings.blocks}"}} 1.0',
        *_histograms(labels),
    ]
    return "\n".join([*lines, ""])


def _histograms(labels: str) -> Iterator[str]:
    for number in range(24):
        name = f"vllm:request_phase_{number}_time_seconds"
        yield f"# HELP {name} Histogram of a phase of requests in seconds."
        yield f"# TYPE {name} histogram"
        for bucket in range(22):
            yield f'{name}_bucket{{{labels},le="{bucket / 2}"}} {bucket * 100.0}'
        yield f"{name}_sum{{{labels}}} 4321.5"
        yield f"{name}_count{{{labels}}} 2200.0"


def _response(content_type: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (content_type, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def metrics_response(settings: Settings = DEFAULT) -> bytes:
    """Return the whole response that has the metrics page."""
    page = metrics_page(settings).encode()
    return _response(b"text/plain; version=0.0.4; charset=utf-8", page)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_TOKEN = _chunk(
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]}\n\n'
)
_STREAM_END = _chunk(b"data: [DONE]\n\n") + _chunk(b"")
_STREAMING = re.compile(rb'"stream": *true')
_MAX_TOKENS = re.compile(rb'"max_tokens": *(\d+)')
_POST = _response(b"application/json", _COMPLETION)
_HEALTH = _response(b"text/plain", b"")
_MODELS = _response(
    b"application/json",
    b'{"object":"list","data":[{"id":"bench","object":"model","created":1700000000,'
    b'"owned_by":"vllm","root":"bench","max_model_len":131072}]}',
)
_METRICS = metrics_response()


class Engine(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self, settings: Settings = DEFAULT, metrics: bytes = _METRICS) -> None:
        self._pace = settings.pace
        self._metrics = metrics
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer a request when it is complete."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or not _complete(head, body) or self._transport is None:
            return
        self._received = b""
        if head.startswith(b"POST") and _STREAMING.search(body):
            self._transport.write(_STREAM_HEAD)
            tokens = _MAX_TOKENS.search(body)
            loop = asyncio.get_running_loop()
            self._generate(loop, loop.time(), int(tokens[1]) if tokens else 1)
        elif head.startswith(b"POST"):
            self._transport.write(_POST)
        elif b" /metrics " in head:
            self._transport.write(self._metrics)
        else:
            self._transport.write(_MODELS if b" /v1/models " in head else _HEALTH)

    def _generate(self, loop: asyncio.AbstractEventLoop, due: float, left: int) -> None:
        """Send a token, and the next ones when they are due."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(_TOKEN)
        if left == 1:
            self._transport.write(_STREAM_END)
            return
        due += 1 / self._pace
        loop.call_at(due, self._generate, loop, due, left - 1)


def _complete(head: bytes, body: bytes) -> bool:
    length = _CONTENT_LENGTH.search(head)
    if length is not None:
        return len(body) >= int(length[1])
    # Envoy sends a buffered body of unknown length in chunks.
    return b"chunked" not in head.lower() or body.endswith(b"0\r\n\r\n")


async def serve(ports: Sequence[int], settings: Settings) -> None:
    """Serve an engine on each of these ports of 127.0.0.1, until cancelled."""
    loop, metrics = asyncio.get_running_loop(), metrics_response(settings)
    for port in ports:
        await loop.create_server(lambda: Engine(settings, metrics), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


def main() -> None:
    """Serve as the command line says."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("ports", type=int, nargs="+")
    options.add_argument("--used", type=float, default=DEFAULT.used)
    options.add_argument("--blocks", type=int, default=DEFAULT.blocks)
    options.add_argument("--pace", type=float, default=DEFAULT.pace)
    chosen = options.parse_args()
    uvloop.run(serve(chosen.ports, Settings(chosen.used, chosen.blocks, chosen.pace)))


if __name__ == "__main__":
    main()
