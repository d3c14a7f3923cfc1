"""An engine that costs next to nothing: fixed answers, no model. ``python -m bench.upstream PORT``.

Its metrics page is as long as vLLM's and says that a tenth of the KV cache is free: the lowest
class is then shed and the highest admitted, by one Tidegate, at the same time.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from typing import cast

import uvloop

_CONTENT_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_COMPLETION = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"'
    + b"word "
    * 60
    + b'"},"finish_reason":"stop"}],"usage":{"prompt_tokens":480,"completion_tokens":60,'
    b'"total_tokens":540}}'
)


def metrics_page() -> str:
    """Return a page of about 50 KB, as long as vLLM's own."""
    labels = 'engine="0",model_name="bench"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} 4.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.9",
        f"vllm:num_preemptions_total{{{labels}}} 0.0",
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="40000"} 1.0',
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


_POST = _response(b"application/json", _COMPLETION)
_HEALTH = _response(b"text/plain", b"")
_METRICS = _response(b"text/plain; version=0.0.4; charset=utf-8", metrics_page().encode())


class Engine(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self) -> None:
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
        if head.startswith(b"POST"):
            self._transport.write(_POST)
        else:
            self._transport.write(_METRICS if b" /metrics " in head else _HEALTH)


def _complete(head: bytes, body: bytes) -> bool:
    length = _CONTENT_LENGTH.search(head)
    if length is not None:
        return len(body) >= int(length[1])
    # Envoy sends a buffered body of unknown length in chunks.
    return b"chunked" not in head.lower() or body.endswith(b"0\r\n\r\n")


async def serve(port: int) -> None:
    """Serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
