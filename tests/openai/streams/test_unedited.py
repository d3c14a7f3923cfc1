"""Answers that are only read: JSON bodies, encoded streams, endpoints that we cannot end."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import read
from extproc.openai.streams import Asked, Edit, Editor, Ending, Usage, unedited

CHAT = Endpoint.CHAT
ENDING = Ending("stop", "sorry", fallback=b"whole")
STREAM = (
    b'data: {"id":"c","choices":[{"delta":{"content":"[1] "},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
    b"data: [DONE]\n\n"
)

Make = Callable[..., Editor]
Feed = Callable[..., tuple[bytes, bool]]


def whole(**members: Any) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("body", "usage", "finish"),
    [
        (
            whole(
                choices=[{"finish_reason": "length"}, {"finish_reason": "stop"}],
                usage={"prompt_tokens": 3, "completion_tokens": 4},
            ),
            Usage(3, 4),
            "length",
        ),
        (
            whole(status="incomplete", usage={"input_tokens": 3, "output_tokens": 4}),
            Usage(3, 4),
            "incomplete",
        ),
        (
            whole(stop_reason="end_turn", usage={"input_tokens": 3, "output_tokens": 4}),
            Usage(3, 4),
            "end_turn",
        ),
        (whole(choices=7, usage={"prompt_tokens": "3"}), Usage(3, 0), None),
        (whole(error={"message": "too long"}), None, "error"),
        (whole(data=[], usage={"prompt_tokens": 3}), Usage(3, 0), None),
        (b"[7]", None, None),
        (b"no JSON", None, None),
        (b"[" * 9999, None, None),
        (b"", None, None),
    ],
)
def test_a_whole_body_passes_as_it_is(
    editor: Make, edited: Feed, body: bytes, usage: Usage | None, finish: str | None
) -> None:
    reading = editor(CHAT, content_type="application/json", early_stop=EarlyStop(True, True, True))
    assert edited(reading, body[:9], body[9:]) == (body, False)
    assert (reading.usage, reading.finish) == (usage, finish)
    assert reading.delivered_tokens == (usage.completion_tokens if usage else 0)


def test_a_body_that_is_too_long_is_not_read(
    editor: Make, edited: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unedited, "LONGEST_READ", 100)
    body = whole(x="y" * 200, usage={"prompt_tokens": 3})
    reading = editor(CHAT, content_type="application/json")
    assert edited(reading, *(body[at : at + 9] for at in range(0, len(body), 9))) == (body, False)
    assert reading.usage is None


def test_a_whole_body_is_replaced_before_its_first_byte_only(editor: Make) -> None:
    evicted = editor(CHAT, content_type="application/json")
    assert evicted.cuttable
    assert evicted.cut(Ending("stop", "sorry")) is None
    assert evicted.cut(ENDING) == Edit(b"whole", finished=True)
    assert evicted.cut(ENDING) == Edit(b"", finished=True)
    assert evicted.feed(b"{}", end=True) == Edit(b"", finished=True)


def test_a_whole_body_that_has_begun_goes_on(editor: Make) -> None:
    begun = editor(CHAT, content_type="application/json")
    begun.feed(b"{")
    assert not begun.cuttable
    assert begun.cut(ENDING) is None


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", deflated)],
)
@pytest.mark.parametrize("width", [1, 10, 10_000])
def test_an_encoded_stream_is_read_and_passes_as_it_is(
    editor: Make, edited: Feed, encoding: str, encode: Callable[[bytes], bytes], width: int
) -> None:
    data = encode(STREAM)
    reading = editor(CHAT, content_encoding=encoding, early_stop=EarlyStop(True), strip_usage=True)
    chunks = [data[at : at + width] for at in range(0, len(data), width)]
    assert edited(reading, *chunks) == (data, False)
    assert (reading.usage, reading.finish, reading.delivered_tokens) == (Usage(3, 4), "stop", 4)
    assert not reading.cuttable
    assert reading.cut(ENDING) is None


def test_an_encoded_body_is_read(editor: Make, edited: Feed) -> None:
    data = gzip.compress(whole(usage={"prompt_tokens": 3, "completion_tokens": 4}))
    reading = editor(CHAT, content_type="application/json", content_encoding="gzip")
    assert edited(reading, data) == (data, False)
    assert reading.usage == Usage(3, 4)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("br", b"whatever"),
        ("gzip, gzip", gzip.compress(gzip.compress(STREAM))),
        ("gzip", b"no gzip at all"),
        ("gzip", gzip.compress(STREAM)[:-20]),
        ("gzip", gzip.compress(b"data: " + b" " * (2 << 20) + STREAM)),
        ("gzip", gzip.compress(b" " * (1 << 20)) * 2 + gzip.compress(STREAM)),
    ],
    ids=["unknown", "twice", "broken", "torn", "bomb", "bombs"],
)
def test_what_does_not_decode_passes_unread(
    editor: Make, edited: Feed, encoding: str, data: bytes
) -> None:
    reading = editor(CHAT, content_encoding=encoding)
    assert edited(reading, data, data) == (data + data, False)
    assert reading.usage is None


@pytest.mark.parametrize("endpoint", [Endpoint.GENERATE, Endpoint.COHERE, Endpoint.EMBEDDINGS])
def test_endpoints_that_we_cannot_end_are_read(
    editor: Make, edited: Feed, endpoint: Endpoint
) -> None:
    reading = editor(endpoint, early_stop=EarlyStop(True, True, True, ("1",)))
    assert edited(reading, STREAM) == (STREAM, False)
    assert reading.usage == Usage(3, 4)
    again = editor(endpoint)
    again.feed(STREAM[:20])
    assert again.cut(ENDING) is None


# What is kept of a call.


@pytest.mark.parametrize(
    ("endpoint", "body", "choices"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": 2, "best_of": 5}, 2),
        (CHAT, {"best_of": 5}, 1),
        (CHAT, {"n": -1}, 1),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "best_of": 3}, 4),
        (Endpoint.MESSAGES, {"n": 3}, 1),
    ],
)
def test_how_many_texts_will_come(endpoint: Endpoint, body: dict[str, Any], choices: int) -> None:
    """Engines ignore ``best_of``; the capacity that a call may need does not."""
    assert Asked.by(read(endpoint, json.dumps(body).encode())).choices == choices


def test_what_of_a_call_matters_for_its_answer() -> None:
    body = {
        "messages": [{"content": "x" * 4000}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_object"},
    }
    asked = Asked.by(read(CHAT, json.dumps(body).encode()))
    assert asked == Asked(
        CHAT, choices=1, include_usage=True, structured=True, prompt_tokens=asked.prompt_tokens
    )
    assert 1000 < asked.prompt_tokens < 1100


def test_what_is_only_read_is_never_held_back(editor: Make) -> None:
    reading = editor(CHAT, content_type="application/json")
    reading.feed(b"{")

    assert reading.unsent == b""
