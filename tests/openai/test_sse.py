from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai import sse
from extproc.openai.sse import Event, EventReader, chunk, dump, named


def read(*chunks: bytes) -> list[bytes]:
    """What each event says, empty ones left out."""
    reader = EventReader()
    events = [event for chunk in chunks for event in reader.feed(chunk)] + reader.end()
    assert b"".join(event.raw for event in events) == b"".join(chunks)
    return [event.data for event in events if event.data]


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (b"", []),
        (b"data: {}\n\ndata: [DONE]\n\n", [b"{}", b"[DONE]"]),
        (b"data:{}\n\n", [b"{}"]),
        (b"data:  {}\n\n", [b" {}"]),
        (b"data: {}\r\n\r\ndata: 1\r\n\r\n", [b"{}", b"1"]),
        (b"data: {}\r\rdata: 1\r\r", [b"{}", b"1"]),
        (b"data: {}\n\r\ndata: 1\r\n\n", [b"{}", b"1"]),
        (b"event: a\ndata: {\ndata: }\nid: 7\n\n", [b"{\n}"]),
        (b": ping\n\n\n\n: data: no\nretry: 1\n\n", []),
        (b"\xef\xbb\xbfdata: {}\n\n", [b"{}"]),
        (b"data: {}\n\ndata: [DONE]", [b"{}", b"[DONE]"]),
        (b"data: {}\n\ndata: [DONE]\n", [b"{}", b"[DONE]"]),
        ("data: 你\u2028好\u0085\n\n".encode(), ["你\u2028好\u0085".encode()]),
    ],
)
def test_events_however_they_are_cut(stream: bytes, said: list[bytes]) -> None:
    assert read(stream) == said
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == said
    for at in range(len(stream)):
        assert read(stream[:at], stream[at:]) == said


def test_an_event_comes_out_with_its_last_byte() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\n\nda") == [Event(b"data: 1\n\n", b"1")]
    assert reader.feed(b"ta: 2\n") == []
    assert reader.feed(b"\n") == [Event(b"data: 2\n\n", b"2")]
    assert reader.feed(b"data: 3\r\n\r") == [Event(b"data: 3\r\n\r", b"3")]
    assert reader.feed(b"\n") == []
    assert reader.end() == [Event(b"\n", b"")]


def test_an_event_without_end_is_passed_on_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LONGEST_EVENT", 10)
    reader = EventReader()
    assert reader.feed(b"data: 1234") == []
    unread = [reader.unread]
    assert reader.feed(b"5\n") == [Event(b"data: 123", b"")]
    assert [*unread, reader.unread] == [False, True]
    assert reader.feed(b"\ndata: 1\n\n") == [Event(b"45\n\n", b""), Event(b"data: 1\n\n", b"1")]


PIECES = st.sampled_from(
    [
        b"data:",
        b"data: ",
        b"{",
        b"}",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b":",
        b"event: a",
        b"\xef\xbb",
    ]
)


@given(st.lists(PIECES).map(b"".join) | st.binary(), st.data())
def test_nothing_depends_on_the_cuts(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*chunks) == read(stream)


# What is written.


def test_what_is_written_is_one_line_of_json() -> None:
    assert dump({"a": "你\u2028\u2029\u0085\n"}) == '{"a":"你\\u2028\\u2029\\u0085\\n"}'.encode()
    assert dump({"a": "\ud800"}) == b'{"a":"?"}'
    assert chunk({"a": 1}) == b'data: {"a":1}\n\n'
    assert named("x.y", {"a": 1}) == b'event: x.y\ndata: {"type":"x.y","a":1}\n\n'


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_what_is_written_is_read_again(value: object) -> None:
    written = chunk(value)
    assert len(written.decode().splitlines()) == 2
    assert [json.loads(data) for data in read(written)] == [value]
