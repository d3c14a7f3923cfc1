"""Whatever an engine streams: a valid result or a declared pass-through, never an exception."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.sse import EventReader
from extproc.openai.streams import Asked, Editor, Ending, open_editor

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
RESPONSES, MESSAGES = Endpoint.RESPONSES, Endpoint.MESSAGES
ENDPOINTS = st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES, Endpoint.GENERATE])
LAST = {
    CHAT: ["[DONE]"],
    COMPLETIONS: ["[DONE]"],
    MESSAGES: ["message_stop"],
    RESPONSES: ["response.completed", "response.incomplete", "response.failed"],
}
ENDING = Ending("load_shedding_fallback", "请稍候\u2028", {"reason": "evicted"})
EARLY_STOPS = st.sampled_from(
    [
        EarlyStop(complete_json=True),
        EarlyStop(stop=("END", "\n\n")),
        EarlyStop(complete_json=True, repetition=True, whitespace=True, stop=("ab",)),
    ]
)

ODD: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.just([])
    | st.just({})
    | st.just("\ud83d")
)
TEXTS = st.sampled_from(
    ["a", "E", "N", "D", "END", "\n", "[1]", "{", '"', "}", " " * 300, "ab" * 600, "你\u2028", ""]
)
INDEXES = st.integers(0, 2)


def members(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of its members, some of those odd."""
    return st.fixed_dictionaries(
        {}, optional={name: each | ODD for name, each in strategies.items()}
    )


USAGES = members(
    prompt_tokens=st.integers(0, 99), completion_tokens=st.integers(0, 99), output_tokens=INDEXES
)
DELTAS = members(
    content=TEXTS, role=st.just("assistant"), reasoning=TEXTS, tool_calls=st.just([{"index": 0}])
)
CHOICES = st.builds(
    lambda index, delta, more: {"index": index, "delta": delta, **more},
    INDEXES,
    st.builds(lambda content: {"content": content}, TEXTS) | DELTAS,
    members(finish_reason=st.sampled_from(["stop", None]), text=TEXTS, index=INDEXES),
)
CHUNKS = st.builds(
    lambda choices, more: {"id": "c", "choices": choices, **more},
    st.lists(CHOICES, max_size=2),
    members(id=TEXTS, usage=USAGES, error=st.just({}), model=TEXTS, choices=st.just([])),
)
BLOCKS = st.sampled_from(["text", "thinking", "tool_use"])
MESSAGE_EVENTS = st.builds(
    lambda kind, more: {"type": kind, **more},
    st.sampled_from(
        [
            *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
            *("content_block_stop", "message_delta", "message_stop", "ping", "error"),
        ]
    ),
    members(
        message=members(usage=USAGES),
        index=INDEXES,
        content_block=st.builds(lambda kind: {"type": kind}, BLOCKS),
        delta=st.builds(lambda text: {"type": "text_delta", "text": text}, TEXTS)
        | members(stop_reason=st.just("end_turn")),
        usage=USAGES,
    ),
)
KINDS = st.sampled_from(["output_text", "refusal", "reasoning_text", "message", "reasoning", "x"])
TYPED = st.builds(lambda kind, more: {"type": kind, **more}, KINDS, members(type=KINDS, id=TEXTS))
RESPONSE_EVENTS = st.builds(
    lambda kind, number, more: {"type": f"response.{kind}", "sequence_number": number, **more},
    st.sampled_from(
        [
            *("created", "in_progress", "output_item.added", "content_part.added"),
            *("output_text.delta", "output_text.delta", "refusal.delta", "reasoning_text.delta"),
            *("output_text.done", "content_part.done", "reasoning_part.added"),
            *("output_item.done", "completed", "failed", "incomplete", "queued", "x"),
        ]
    ),
    st.integers(0, 9),
    members(
        response=members(id=TEXTS, status=TEXTS, usage=USAGES, metadata=st.just({"a": "b"})),
        output_index=INDEXES,
        content_index=INDEXES,
        item=TYPED,
        part=TYPED,
        delta=TEXTS,
    ),
)
OBJECTS = {CHAT: CHUNKS, COMPLETIONS: CHUNKS, MESSAGES: MESSAGE_EVENTS, RESPONSES: RESPONSE_EVENTS}
BEGINNINGS: dict[Endpoint, list[Any]] = {
    CHAT: [{"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}],
    COMPLETIONS: [{"id": "c", "choices": [{"index": 0, "text": "a"}]}],
    MESSAGES: [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
    ],
    RESPONSES: [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "item": {"type": "message", "id": "m"}},
        {"type": "response.content_part.added", "part": {"type": "output_text"}},
    ],
}
FRAMES = st.sampled_from(
    ["data: {}\n\n", "data:{}\n\n", "event: x\ndata: {}\n\n", ": ping\n\ndata: {}\n\n"]
)
ODD_FRAMES = FRAMES | st.sampled_from(
    ["data: {}\r\n\r\n", "data: {}\r\r", "\n", "data: {}", "data: [DONE]\n\n", "data: {{{}\n\n"]
)


@st.composite
def streams(draw: st.DrawFn, endpoint: Endpoint, frames: st.SearchStrategy[str] = FRAMES) -> bytes:
    """Events of an endpoint as they might come."""
    objects = OBJECTS.get(endpoint, CHUNKS)
    events = [*BEGINNINGS.get(endpoint, []), *draw(st.lists(objects, max_size=12))]
    written = [draw(frames).replace("{}", json.dumps(event)) for event in events]
    return "".join(written).encode()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted(place % (len(stream) + 1) for place in places)
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


PLACES = st.lists(st.integers(0, 4000), max_size=12)


def edited(editor: Editor, chunks: list[bytes]) -> tuple[bytes, bool]:
    edits = [editor.feed(chunk) for chunk in chunks]
    edits.append(editor.feed(b"", end=True))
    assert editor.delivered_tokens >= 0
    return b"".join(edit.data for edit in edits), edits[-1].finished


def check_end(endpoint: Endpoint, data: bytes) -> None:
    """What we write is JSON, one event at a time, and ends as its endpoint's streams do."""
    events = [event.data for event in EventReader().feed(data) if event.data]
    last = events[-1].decode()
    if last != "[DONE]":
        for line in data.decode().splitlines():
            assert line.startswith(("data:", "event:", ":")) or not line
        last = json.loads(last)["type"]
    assert last in LAST[endpoint]


@given(st.data(), ENDPOINTS, PLACES, st.booleans())
def test_fuzz_what_nothing_changes_passes_byte_for_byte(
    data: st.DataObject, endpoint: Endpoint, places: list[int], stop: bool
) -> None:
    stream = data.draw(st.binary() | streams(endpoint, ODD_FRAMES))
    rules = EarlyStop(stop=("never this",)) if stop else EarlyStop()
    editor = open_editor(Asked(endpoint), content_type="text/event-stream", early_stop=rules)
    assert edited(editor, cut(stream, places)) == (stream, False)


@given(st.data(), ENDPOINTS, PLACES, st.booleans())
def test_fuzz_what_is_not_passed_on_yet_is_at_hand(
    data: st.DataObject, endpoint: Endpoint, places: list[int], stop: bool
) -> None:
    stream = data.draw(st.binary() | streams(endpoint, ODD_FRAMES))
    rules = EarlyStop(stop=("never this", "x y")) if stop else EarlyStop()
    editor = open_editor(Asked(endpoint), content_type="text/event-stream", early_stop=rules)
    taken = passed = b""
    for part in cut(stream, places):
        edit = editor.feed(part)
        taken, passed = taken + part, passed + edit.data
        if edit.finished:
            return
        assert passed + editor.unsent == taken


@given(st.data(), ENDPOINTS, EARLY_STOPS, PLACES, st.integers(1, 3), st.booleans(), st.booleans())
def test_fuzz_what_is_stopped_ends_well_however_it_is_cut(
    data: st.DataObject,
    endpoint: Endpoint,
    rules: EarlyStop,
    places: list[int],
    choices: int,
    include_usage: bool,
    strip_usage: bool,
) -> None:
    stream = data.draw(streams(endpoint))

    def make() -> Editor:
        return open_editor(
            Asked(endpoint, choices=choices, include_usage=include_usage),
            content_type="text/event-stream",
            early_stop=rules,
            strip_usage=strip_usage,
        )

    whole, finished = edited(make(), [stream])
    assert edited(make(), cut(stream, places)) == (whole, finished)
    if finished:
        check_end(endpoint, whole)


@given(st.data(), ENDPOINTS, EARLY_STOPS, st.integers(0, 4000), st.booleans())
def test_fuzz_what_is_cut_ends_well_or_not_at_all(
    data: st.DataObject, endpoint: Endpoint, rules: EarlyStop, place: int, message: bool
) -> None:
    stream = data.draw(streams(endpoint))
    editor = open_editor(
        Asked(endpoint, choices=2), content_type="text/event-stream", early_stop=rules
    )
    place %= len(stream) + 1
    passed = editor.feed(stream[:place])
    cuttable = editor.cuttable
    edit = editor.cut(ENDING if message else Ending("stop"))
    if edit is None:
        rest = editor.feed(stream[place:], end=True)
        assert passed.finished or passed.data + rest.data or not stream
        return
    assert edit.finished
    assert not editor.cuttable
    assert editor.feed(stream[place:], end=True).data == b""
    if cuttable:
        check_end(endpoint, passed.data + edit.data)


BODIES = st.binary() | (ODD | CHUNKS).map(lambda tree: json.dumps(tree).encode())
ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


@given(BODIES, ENDPOINTS, PLACES, st.sampled_from(sorted(ENCODE)), st.booleans(), st.booleans())
def test_fuzz_what_is_only_read(
    body: bytes, endpoint: Endpoint, places: list[int], encoding: str, true: bool, events: bool
) -> None:
    body = ENCODE[encoding](body) if true else body
    editor = open_editor(
        Asked(endpoint),
        content_type="text/event-stream" if events else "application/json",
        content_encoding=encoding,
    )
    assert edited(editor, cut(body, places)) == (body, False)
