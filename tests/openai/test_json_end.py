from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.json_end import DEEPEST, JsonEnd


def end_of(*pieces: str) -> tuple[str, str] | None:
    """Return the text up to the end of its value, and what closes the block around it."""
    reader, before = JsonEnd(), ""
    for piece in pieces:
        at = reader.feed(piece)
        if at is not None:
            return before + piece[:at], reader.closing
        before += piece
    return None


@pytest.mark.parametrize(
    ("value", "chatter"),
    [
        ("{}", ""),
        ("[]", " and more"),
        ('{"a": 1}', "\n\nI hope this helps!"),
        ('\n  {"a": [1, {"b": "}"}], "c": {}}', "{}"),
        ('{"a": "\\"}", "b": "\\\\"}', '"}'),
        ('{\n  "a": "line\nbreak"\n}', ""),
        ('[ \n{"a": 1}, {"a": 2}]', "]"),
        ("[-1.5e3, 0]", ""),
        ("[[1], []]", ""),
        ('{"你好": "「}」"}', "。"),
        # What comes before.
        ('Sure! Here it is:\n{"a": 1}', "\nAnything else?"),
        ('As in [1], and {x}:\n\n[{"a": 1}]', ""),
        ("[see note]\n[1]", ""),
        ("{x}\n[1]", ""),
        ('{"a": [1}\n[1]', ""),
        ("[1: a\n}\n[1]", ""),
        ('<think>\n{"draft": 1}\n</think>\n\n{"a": 1}', " done"),
        ('<think>a</thinking></think>{"a": 1}', ""),
    ],
)
def test_the_first_value_ends_the_text(value: str, chatter: str) -> None:
    text = value + chatter
    assert end_of(text) == (value, "")
    assert end_of(*text) == (value, "")
    for at in range(len(text)):
        assert end_of(text[:at], text[at:]) == (value, "")


@pytest.mark.parametrize(
    ("text", "value", "closing"),
    [
        ('```json\n{"a": 1}\n```\nBye', '```json\n{"a": 1}', "\n```"),
        ("Look:\n  ```\n[1]```", "Look:\n  ```\n[1]", "\n```"),
        ("```sh\nls\n```\n[1]", "```sh\nls\n```\n[1]", ""),
    ],
)
def test_a_code_block_around_it_is_closed(text: str, value: str, closing: str) -> None:
    assert end_of(text) == (value, closing)
    assert end_of(*text) == (value, closing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no value at all",
        '{"a": 1',
        '{"a": "}',
        '{"a": "\\',
        "[",
        "{ ",
        "inline: {}",
        "[text](https://example.org) and [true]",
        "<think>\n{}\n",
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1) + "\n{}",
    ],
)
def test_texts_without_a_value(text: str) -> None:
    assert end_of(text, "\n") is None
    assert end_of(*text, "\n", "{}" if text.startswith("[[") else "") is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(
    st.dictionaries(st.text(), VALUES) | st.lists(st.integers() | st.text() | st.lists(VALUES)),
    st.none() | st.integers(1, 4),
    st.text(),
    st.integers(1, 20),
)
def test_every_object_and_array_ends_at_its_end(
    value: object, indent: int | None, chatter: str, width: int
) -> None:
    written = json.dumps(value, indent=indent, ensure_ascii=False)
    text = written + chatter
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    assert end_of(*pieces) == (written, "")


@given(st.text(alphabet='{}[]"\\\n ,:1a`<>think/'), st.integers(1, 9))
def test_nothing_depends_on_the_pieces(text: str, width: int) -> None:
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    assert end_of(*pieces) == end_of(text)
