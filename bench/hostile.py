"""How long hostile bodies hold up the loop: ``python -m bench.hostile`` prints a line for each, longest first.

Each body goes the way that it goes in the process: from the bytes of Envoy's message to those of the reply
(`wire.parse`, `Exchange`, `Admission`, `wire.encode`), at every endpoint, in the default configuration
but for engines that schedule by priority, so that every body that can be read is also written anew. The
time is processor time, the best of a few rounds: a busy machine makes it longer, never shorter. The bar is
5 ms: for so long the loop stands still.
"""

from __future__ import annotations

import gc
import gzip
import json
import random
import sys
import time
import zlib
from collections.abc import Iterator

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc import app
from extproc.app import Tidegate
from extproc.config import parse
from extproc.edge import wire
from extproc.edge.exchange import Exchange
from extproc.edge.messages import Answer

KIB, MIB = 1 << 10, 1 << 20
CALL, BODY = 2 * MIB, 16 * MIB
"""Bytes: `requests.max_call`, up to which bodies are read, and what is refused for its size alone."""
ROUNDS = 7
BAR = 5.0
HEADERS = (("headers['x-tenant-id']", "service"), ("headers['x-task-type']", "t"))
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/inference/v1/generate",
    "/invocations",
)
CONFIG = """
identity: {sources: [{header: {name: x-tenant-id, trusted: true}}]}
tenants: {service: {class: P1}}
tasks: {t: {stop: [END], stop_on: complete_json}}
pools: {qwen: {scheduling_policy: priority, endpoints: {static: ["127.0.0.1:9"]}}}
"""


def filled(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    """Return a body of about ``size`` bytes that repeats ``unit``."""
    return head + unit * max(1, (size - len(head) - len(tail)) // len(unit)) + tail


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield hostile bodies, each with what it is."""
    said = b'{"model":"qwen","messages":[{"role":"user","content":"'
    end = b'"}]}'
    noise = random.Random(1).randbytes(CALL)  # noqa: S311 (no secret)
    for size in (512 * KIB, MIB, CALL - KIB):
        name = f"{size // KIB} KiB of "
        yield name + "text", filled(said, b"lorem ipsum ", end, size)
        yield name + "Chinese", filled(said, "潮汐门".encode(), end, size)
        yield name + r"\u escapes", filled(said, rb"\u6f6e", end, size)
        yield name + "escaped quotes", filled(said, rb"\"", end, size)
        yield name + "blanks", filled(b'{"messages":[', b" ", b"]}", size)
        yield name + "brackets, open", b'{"messages":' + b"[" * size
        yield name + "empty arrays", filled(b'{"messages":[', b"[],", b"[]]}", size)
        yield name + "strings", filled(b'{"prompt":[', b'"",', b'""]}', size)
        yield name + "token ids", filled(b'{"prompt":[', b"1,", b"1]}", size)
        yield name + "batches of token ids", filled(b'{"prompt":[', b"[1],", b"[1]]}", size)
        yield name + "numbers with exponents", filled(b'{"input":[', b"1e9,", b"1]}", size)
        yield name + "digits", b'{"max_tokens":' + b"9" * size + b',"messages":[]}'
        yield name + "one name again and again", filled(b"{", b'"n":1,', b'"n":1}', size)
        yield name + "other names", filled(b"{", b'"":1,', b'"messages":[]}', size)
        yield name + "objects in objects", b'{"messages":[' + b'{"a":' * (size // 5)
        yield name + "no UTF-8", filled(said, b"\xff", end, size)
        yield name + "stop sequences", filled(b'{"messages":[],"stop":[', b'"a",', b'"b"]}', size)
        yield name + "links to images", filled(b'{"messages":[', b'{"image_url":1},', b"1]}", size)
        image = (
            said + b'"},{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
        )
        yield name + "an image", filled(image, b"iVBORw0KGgoA", b'"}}]}]}', size)
        yield (
            name + "text beside a link",
            filled(image + b'"}}]},{"content":"', b"lorem ", end, size),
        )
        yield name + "almost images", filled(said, b";base64,", end, size)
        yield name + "data", filled(b'{"messages":[', b'"data":"",', b'""]}', size)
        yield name + "metadata", filled(b'{"messages":[],"metadata":{"a":"', b"x", b'"}}', size)
        yield name + "user", filled(b'{"messages":[],"user":"', b"\\n", b'"}', size)
        yield name + "model", filled(b'{"messages":[],"model":"', rb"\u0000", b'"}', size)
        yield name + "tools", filled(b'{"messages":[],"tools":[', b'{"a":1},', b"1]}", size)
        yield name + "noise", noise[:size]
        yield name + "UTF-16", said.decode().encode("utf-16") + b"x\0" * (size // 2)
    dense = 511 * KIB
    yield "511 KiB of strings", filled(b'{"messages":[', b'"",', b'""]}', dense)
    yield "511 KiB of empty objects", filled(b'{"messages":[', b"{},", b"{}]}", dense)
    yield "511 KiB of members", filled(b'{"messages":[],"x":{', b'"":1,', b'"":1}}', dense)
    yield "32 KiB with NaN, depth 10^3", b'{"x":NaN,"messages":' + b"[" * 1000 + b"]" * 1000 + b"}"
    yield "32 KiB with NaN, strings", filled(b'{"x":NaN,"messages":[', b'"",', b'""]}', 32 * KIB)
    yield (
        "32 KiB with NaN, members",
        filled(b'{"x":NaN,"messages":[{', b'"":1,', b'"":1}]}', 32 * KIB),
    )
    yield (
        "32 KiB of UTF-16",
        json.dumps({"messages": ["潮" * 8000]}, ensure_ascii=False).encode("utf-16"),
    )
    yield "depth 10^5", b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for kind, unit in (("blanks", b" "), ("strings", b'"",'), ("text", b"lorem ipsum ")):
        inner = filled(b'{"messages":["', unit if kind == "text" else b"x", b'"]}', MIB - KIB)
        if kind != "text":
            inner = filled(b'{"messages":[', unit, b'""]}', MIB - KIB)
        yield f"gzip of 1 MiB of {kind}", gzip.compress(inner)
    yield "gzip of 16 MiB", gzip.compress(b" " * BODY)
    yield "gzip of 2 MiB of noise", gzip.compress(noise, 1)
    deflate = zlib.compressobj(0, wbits=31)
    stored = deflate.compress(filled(said, b"x", end, MIB - KIB)) + deflate.flush()
    yield "gzip, stored", stored
    for kind, unit in (("text", b"lorem ipsum "), ("brackets", b"["), ("no UTF-8", b"\xff")):
        yield f"16 MiB of {kind}", filled(said, unit, end, BODY)


def main() -> int:
    """Measure, write a line for each body, and say whether all are within the bar."""
    tidegate = app.build(parse(CONFIG))
    tidegate.pools["qwen"].join("127.0.0.1:9")
    rows: list[tuple[float, str, str, str]] = []
    gc.freeze()
    for name, body in bodies():
        measured = [(*_cost(tidegate, path, body), path) for path in PATHS]
        best, said, path = max(measured)
        rows.append((best * 1e3, name, path, said))
    rows.sort(reverse=True)
    out = "".join(f"{best:7.2f}  {name:40} {path:24} {said}\n" for best, name, path, said in rows)
    sys.stdout.write(f"{'ms':>7}  at the endpoint where it takes longest\n{out}")
    return 0 if rows[0][0] <= BAR else 1


def _cost(tidegate: Tidegate, path: str, body: bytes) -> tuple[float, str]:
    """Return the seconds that an answer takes, and what it is."""
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    for name, value in (("path", path), *HEADERS):
        fields[f"request.{name}"].string_value = value
    raw = message.SerializeToString()
    best, said = float("inf"), ""
    for _ in range(ROUNDS):
        begun = time.thread_time()
        exchange = Exchange(tidegate.admission, lambda _: None)
        reply = exchange.receive(wire.decode(wire.parse(raw)))
        if reply is not None:
            wire.encode(reply)
        best = min(best, time.thread_time() - begun)
        exchange.close()
        said = str(reply.status) if isinstance(reply, Answer) else type(reply).__name__
    return best, said


if __name__ == "__main__":
    sys.exit(main())
