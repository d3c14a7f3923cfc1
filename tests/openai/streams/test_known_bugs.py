"""What other gateways got wrong in reading streams; each test names where it was reported."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable

import pytest

from extproc.openai.endpoints import Endpoint
from extproc.openai.streams import Editor, Usage

CHAT, RESPONSES, MESSAGES = Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES
TEXT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
NULL = b'data: {"id":"c","choices":[{"index":0,"delta":{}}],"usage":null}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
RESPONSE_USAGE = b'"response":{"usage":{"input_tokens":3,"output_tokens":4}}'


def ended(kind: bytes) -> bytes:
    return b'event: %s\ndata: {"type":"%s",%s}\n\n' % (kind, kind, RESPONSE_USAGE)


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def counting() -> list[bytes]:
    usage = b'"usage":{"prompt_tokens":3,"completion_tokens":%d}'
    return [b'data: {"choices":[{"index":0}],%s}\n\n' % (usage % number) for number in range(5)]


def odd(usage: bytes) -> list[bytes]:
    return [b'data: {"choices":[{"index":0}],"usage":%s}\n\n' % usage, USAGE, DONE]


def flushed(pieces: Iterable[bytes]) -> list[bytes]:
    """One gzip stream, flushed after each piece."""
    deflate = zlib.compressobj(wbits=31)
    encoded = [deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*encoded, deflate.flush()]


@pytest.mark.parametrize(
    ("endpoint", "chunks"),
    [
        pytest.param(
            RESPONSES,
            [ended(b"response.completed")[:60], ended(b"response.completed")[60:]],
            id="usage split over chunks (envoyproxy/ai-gateway#2162)",
        ),
        pytest.param(
            RESPONSES,
            bytewise(ended(b"response.completed")),
            id="the event's name alone in a chunk (higress-group/wasm-go#55)",
        ),
        pytest.param(
            CHAT,
            bytewise(TEXT + USAGE + DONE),
            id="one byte at a time (higress-group/higress#4146)",
        ),
        pytest.param(
            CHAT,
            [TEXT, USAGE, DONE],
            id="[DONE] in a chunk of its own (gateway-api-inference-extension#1626)",
        ),
        pytest.param(
            CHAT, [TEXT, DONE, USAGE], id="usage after [DONE], which does not overwrite it"
        ),
        pytest.param(
            CHAT,
            [(TEXT + USAGE + DONE).replace(b"data: ", b"data:")],
            id="data: without a space (envoyproxy/ai-gateway#2470, openai-python#498)",
        ),
        pytest.param(
            CHAT, [(TEXT + USAGE + DONE).replace(b"\n", b"\r\n")], id="lines that end in CRLF"
        ),
        pytest.param(
            CHAT, counting(), id="usage in every chunk, summed up (lemma-work/lemma-platform#564)"
        ),
        pytest.param(
            CHAT,
            [NULL, TEXT, NULL, USAGE, NULL, DONE],
            id="usage: null counted as zero (router-for-me/CLIProxyAPI#3173)",
        ),
        pytest.param(CHAT, odd(b'"many"'), id="usage that is a word"),
        pytest.param(CHAT, odd(b'{"prompt_tokens":-1,"completion_tokens":null}'), id="negative"),
        pytest.param(CHAT, odd(b'{"prompt_tokens":3.7,"completion_tokens":[]}'), id="a fraction"),
        pytest.param(
            CHAT,
            odd(b'{"prompt_tokens_details":{"cached_tokens":0}}'),
            id="usage without counts (theopenco/llmgateway#2861)",
        ),
        pytest.param(
            RESPONSES,
            [ended(b"response.incomplete")],
            id="response.incomplete (envoyproxy/ai-gateway#2184)",
        ),
        pytest.param(
            RESPONSES,
            [ended(b"response.failed")],
            id="response.failed (envoyproxy/ai-gateway#2184)",
        ),
        pytest.param(
            MESSAGES,
            [
                b'data: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n',
                b'data: {"type":"message_delta","delta":{},"usage":{"output_tokens":4}}\n\n',
            ],
            id="message_start and message_delta added up (tensorzero/tensorzero#5481)",
        ),
    ],
)
def test_usage(
    editor: Callable[..., Editor],
    edited: Callable[..., tuple[bytes, bool]],
    endpoint: Endpoint,
    chunks: list[bytes],
) -> None:
    reading = editor(endpoint)
    assert edited(reading, *chunks) == (b"".join(chunks), False)
    assert reading.usage == Usage(3, 4)


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([gzip.compress(TEXT + USAGE + DONE)], id="whole (ai-gateway#1189)"),
        pytest.param(flushed([TEXT, USAGE, DONE]), id="flushed by event (ai-gateway#1927)"),
        pytest.param(
            [gzip.compress(piece) for piece in (TEXT, USAGE, DONE)], id="each event by itself"
        ),
        pytest.param(bytewise(gzip.compress(TEXT + USAGE + DONE)), id="cut anywhere"),
    ],
)
def test_usage_of_gzip_streams(
    editor: Callable[..., Editor],
    edited: Callable[..., tuple[bytes, bool]],
    chunks: list[bytes],
) -> None:
    reading = editor(CHAT, content_encoding="gzip")
    assert edited(reading, *chunks) == (b"".join(chunks), False)
    assert reading.usage == Usage(3, 4)
