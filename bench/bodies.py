"""How long reading a request body holds up the loop: ``python -m bench.bodies``, a line per body.

Bodies are as long as a call may be by default, made of whatever takes the reader longest. The time is
processor time of `read` and `rewrite`, the best of several runs.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator

from extproc.config import Config
from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import MAX_DECOMPRESSED, MAX_LENIENT, Unreadable, read, rewrite

SIZE = Config().requests.max_call
HALF = 512 * 1024
"""Bytes up to which structure is not counted."""
RUNS = 5
URL = "data:image/png;base64,"


def filled(head: bytes, unit: bytes, size: int, tail: bytes) -> bytes:
    """Return as many units as fit into ``size`` bytes, between head and tail."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def members(size: int) -> bytes:
    """Return an object of small members."""
    return b"{" + b",".join(b'"%06d":0' % number for number in range(size // 11)) + b"}"


def bodies() -> Iterator[tuple[str, bytes]]:
    """Return names and bodies."""
    text = b'{"messages":[{"content":"', b'"}]}'
    array = b'{"messages":[', b"0]}"
    yield "text", filled(text[0], b"word ", SIZE, text[1])
    yield "Chinese", filled(text[0], "你".encode(), SIZE, text[1])
    yield "escaped Chinese", filled(text[0], rb"\u4f60", SIZE, text[1])
    yield "line ends", filled(text[0], rb"\n", SIZE, text[1])
    yield "an image", json.dumps({"messages": [{"image_url": URL + "A" * (SIZE - 99)}]}).encode()
    yield "token ids", filled(b'{"prompt":[', b"12345,", SIZE, b"0]}")
    yield "bad UTF-8", filled(text[0], b"\xff", SIZE, text[1])
    yield "no end", filled(text[0], b"x", SIZE, b"")
    yield "a huge number", filled(b'{"max_tokens":', b"9", SIZE, b"}")
    yield "depth 100,000", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for size, name in ((HALF, "512 KiB of"), (SIZE, "")):
        yield f"{name} empty arrays", filled(array[0], b"[],", size, array[1])
        yield f"{name} objects", filled(array[0], b'{"a":1},', size, array[1])
        yield f"{name} strings", filled(b'{"prompt":[', b'"a",', size, b'""]}')
        yield f"{name} members", members(size)
        yield f"{name} one member again", filled(b"{", b'"max_tokens":1,', size, b'"n":1}')
    yield "gzip", gzip.compress(filled(text[0], b"word ", MAX_DECOMPRESSED, text[1]))
    yield "a gzip bomb", gzip.compress(b" " * (64 << 20))
    yield "NaN and objects", filled(b'{"a":NaN,"x":[', b'{"a":0},', MAX_LENIENT, b"0]}")
    yield "NaN and members", b'{"a":NaN,' + members(MAX_LENIENT - 99)[1:]


def main() -> None:
    """Print how long each body takes, and what comes of it."""
    for name, body in bodies():
        best, result = float("inf"), ""
        for _ in range(RUNS):
            begun = time.process_time()
            try:
                call = read(Endpoint.CHAT, body)
                rewrite(call, max_output=512, priority=1, stop=("END",), include_usage=True)
                result = "read"
            except Unreadable as problem:
                result = problem.message
            best = min(best, time.process_time() - begun)
        print(f"{best * 1e3:6.2f} ms  {len(body) / (1 << 20):5.2f} MiB  {name.strip()}: {result}")  # noqa: T201


if __name__ == "__main__":
    main()
