"""from __future__ import annotations"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai import requests
from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import Unreadable, read, rewrite
from tests.openai.calls import GENERATING, call


def test_a_chat_call() -> None:
    read_ = call(
        model="qwen",
        messages=[{"role": "user", "content": "x" * 4000}],
        max_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
        user="alice",
        session_id="s1",
    )
    assert (read_.endpoint, read_.model, read_.stream) == (Endpoint.CHAT, "qwen", True)
    assert (read_.max_output, read_.choices, read_.prompt_tokens) == (100, 1, 1044)
    assert (read_.include_usage, read_.structured) == (True, False)
    assert (read_.user, read_.session) == ("alice", "s1")
    assert (read_.background, read_.gzipped) == (False, False)


@pytest.mark.parametrize(
    "endpoint", [*GENERATING, Endpoint.EMBEDDINGS, Endpoint.COHERE, Endpoint.INVOCATIONS]
)
def test_an_empty_object_says_nothing(endpoint: Endpoint) -> None:
    read_ = read(endpoint, b"{}")
    assert (read_.model, read_.stream, read_.max_output) == ("", False, None)
    assert (read_.choices, read_.prompt_tokens, read_.structured) == (1, 1, False)
    assert (read_.user, read_.session, read_.include_usage) == ("", "", False)


def test_nothing_of_the_prompt_is_shown() -> None:
    assert "secret" not in repr(call(messages=[{"content": "secret"}], stop="secret"))


@pytest.mark.parametrize(
    ("endpoint", "members", "expected"),
    [
        (Endpoint.CHAT, {}, None),
        (Endpoint.CHAT, {"max_tokens": None}, None),
        (Endpoint.CHAT, {"max_tokens": 9, "max_completion_tokens": 5}, 5),
        (Endpoint.CHAT, {"max_tokens": 9, "max_completion_tokens": None}, 9),
        (Endpoint.CHAT, {"max_tokens": 9, "max_completion_tokens": 0}, 0),
        (Endpoint.CHAT, {"max_output_tokens": 9}, None),
        (Endpoint.COMPLETIONS, {"max_tokens": "7"}, 7),
        (Endpoint.COMPLETIONS, {"max_completion_tokens": 7}, None),
        (Endpoint.RESPONSES, {"max_output_tokens": 7.0, "max_tokens": 9}, 7),
        (Endpoint.MESSAGES, {"max_tokens": -1}, -1),
        (Endpoint.COHERE, {"max_tokens": 3}, 3),
        (Endpoint.EMBEDDINGS, {"max_tokens": 3}, None),
        (Endpoint.GENERATE, {"max_tokens": 3, "sampling_params": {"max_tokens": 4}}, 4),
    ],
)
def test_the_limit_that_counts(
    endpoint: Endpoint, members: dict[str, Any], expected: int | None
) -> None:
    assert call(endpoint, **members).max_output == expected


@pytest.mark.parametrize(
    ("endpoint", "members", "expected"),
    [
        (Endpoint.CHAT, {"n": 3}, 3),
        (Endpoint.CHAT, {"n": None}, 1),
        (Endpoint.CHAT, {"n": -2}, 1),
        (Endpoint.CHAT, {"n": 2, "best_of": 5}, 5),
        (Endpoint.CHAT, {"messages": [[{"role": "user"}], [{}], []]}, 3),
        (Endpoint.CHAT, {"messages": [[{}], {}]}, 1),
        (Endpoint.CHAT, {"messages": [{}, {}]}, 1),
        (Endpoint.COMPLETIONS, {"prompt": "hi"}, 1),
        (Endpoint.COMPLETIONS, {"prompt": []}, 1),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (Endpoint.COMPLETIONS, {"prompt": ["a", 'b"', "c"], "n": 2}, 6),
        (Endpoint.COMPLETIONS, {"prompt": ["a", 1]}, 1),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Endpoint.COMPLETIONS, {"prompt": "a", "prompt_embeds": ["AA", "BB"]}, 3),
        (Endpoint.COMPLETIONS, {"prompt": ["a"] * 40_000}, 80_000),
        (Endpoint.COMPLETIONS, {"prompt": [[1]] * 40_000}, 40_001),
        (Endpoint.GENERATE, {"sampling_params": {"n": 4}}, 4),
        (Endpoint.MESSAGES, {"n": 3}, 1),
        (Endpoint.EMBEDDINGS, {"input": ["a", "b"]}, 1),
    ],
)
def test_choices(endpoint: Endpoint, members: dict[str, Any], expected: int) -> None:
    assert call(endpoint, **members).choices == expected


def test_prompts_with_half_an_emoji_are_still_counted() -> None:
    body = b'{"prompt": ["\\ud83d", "b"]}'
    assert read(Endpoint.COMPLETIONS, body).choices == 4


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [
        (Endpoint.CHAT, {"response_format": {"type": "json_object"}}),
        (Endpoint.CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}),
        (Endpoint.CHAT, {"response_format": {"type": "structural_tag"}}),
        (Endpoint.CHAT, {"tool_choice": "required"}),
        (Endpoint.CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (Endpoint.CHAT, {"function_call": {"name": "f"}}),
        (Endpoint.CHAT, {"structured_outputs": {"regex": "a"}}),
        (Endpoint.CHAT, {"guided_json": {}}),
        (Endpoint.COMPLETIONS, {"guided_choice": ["a"]}),
        (Endpoint.COMPLETIONS, {"response_format": {"type": "json_object"}}),
        (Endpoint.RESPONSES, {"text": {"format": {"type": "json_schema"}}}),
        (Endpoint.RESPONSES, {"tool_choice": {"type": "allowed_tools", "mode": "required"}}),
        (Endpoint.MESSAGES, {"tool_choice": {"type": "any"}}),
        (Endpoint.MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}),
        (Endpoint.MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}),
        (Endpoint.MESSAGES, {"output_format": {"type": "json_schema"}}),
    ],
)
def test_structured_calls(endpoint: Endpoint, members: dict[str, Any]) -> None:
    assert call(endpoint, **members).structured


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [
        (Endpoint.CHAT, {"response_format": {"type": "text"}}),
        (Endpoint.CHAT, {"response_format": "json_object"}),
        (Endpoint.CHAT, {"response_format": None, "tool_choice": None, "guided_json": None}),
        (Endpoint.CHAT, {"tool_choice": "auto", "tools": [{}]}),
        (Endpoint.CHAT, {"tool_choice": "none"}),
        (Endpoint.CHAT, {"tool_choice": 7}),
        (Endpoint.RESPONSES, {"text": {"format": {"type": "text"}}}),
        (Endpoint.RESPONSES, {"text": {"verbosity": "low"}}),
        (Endpoint.RESPONSES, {"tool_choice": {"type": "allowed_tools", "mode": "auto"}}),
        (Endpoint.MESSAGES, {"tool_choice": {"type": "auto"}}),
        (Endpoint.MESSAGES, {"output_config": {"effort": "low"}}),
    ],
)
def test_unstructured_calls(endpoint: Endpoint, members: dict[str, Any]) -> None:
    assert not call(endpoint, **members).structured


def test_who_it_belongs_to() -> None:
    assert call(Endpoint.MESSAGES, metadata={"user_id": "u"}).user == "u"
    assert call(Endpoint.RESPONSES, prompt_cache_key="k").session == "k"
    assert call(user=7, session_id=["s"]).user == ""


def test_background() -> None:
    assert call(Endpoint.RESPONSES, background=True).background
    assert not call(Endpoint.CHAT, background="yes, please").background


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (b'{"messages":[]}', Endpoint.CHAT),
        (b'{"messages":[],"prompt":null}', Endpoint.CHAT),
        (b'{"prompt":"a"}', Endpoint.COMPLETIONS),
        (b'{"messages":null,"prompt_embeds":"a"}', Endpoint.COMPLETIONS),
        (b'{"input":"a"}', Endpoint.EMBEDDINGS),
    ],
)
def test_invocations_are_what_the_body_says(body: bytes, endpoint: Endpoint) -> None:
    assert read(Endpoint.INVOCATIONS, body).endpoint is endpoint


def test_invocations_that_could_be_either_are_refused() -> None:
    with pytest.raises(Unreadable) as caught:
        read(Endpoint.INVOCATIONS, b'{"messages":[],"prompt":["a","b"]}')
    assert caught.value.param == "prompt"


# What the engine reads, we read.


@pytest.mark.parametrize(
    "body",
    [
        b'{"max_tokens":1,"max_tokens":900}',
        b'{"max\\u005ftokens":900}',
        b' \n{"max_tokens" : 900 }\r\n ',
        b'\xef\xbb\xbf{"max_tokens":900}',
        '{"max_tokens":900}'.encode("utf-16"),
        '{"max_tokens":900}'.encode("utf-32-be"),
        b'{"max_tokens":900,"temperature":NaN,"top_p":-Infinity}',
        b'{"max_tokens":900,"\\ud800":1}',
        b'{"max_tokens":900,"user":"\xed\xa0\x80"}',
        gzip.compress(b'{"max_tokens":900}'),
    ],
)
def test_every_spelling_is_seen_and_clamped(body: bytes) -> None:
    read_ = read(Endpoint.CHAT, body)
    assert read_.max_output == 900
    written = rewrite(read_, max_output=512)
    assert written is not None
    assert json.loads(written)["max_tokens"] == 512


def test_lenient_reading_reaches_inside() -> None:
    body = (
        b'{"temperature":NaN,"metadata":{"user_id":"u","x":"\\ud800"},'
        b'"response_format":NaN,"stream_options":{"include_usage":true,"x":NaN}}'
    )
    read_ = read(Endpoint.CHAT, body)
    assert (read_.user, read_.include_usage, read_.structured) == ("u", True, False)
    assert json.loads(bytes(read_.body))["metadata"] == {"user_id": "u", "x": "\ud800"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The request body is not valid JSON."),
        (b"{", "The request body is not valid JSON."),
        (b'{"a":1} x', "The request body is not valid JSON."),
        (b'{"a":"\x01"}', "The request body is not valid JSON."),
        (b'{"\xff":NaN}', "The request body is not valid JSON."),
        (b"\x28\xb5\x2f\xfd\x00", "The request body is not valid JSON."),
        (
            b'{"messages":' + b"[" * 15_000 + b"]" * 15_000 + b"}",
            "The request body is not valid JSON.",
        ),
        (b"[]", "The request body must be a JSON object."),
        (b"null", "The request body must be a JSON object."),
        (b"NaN", "The request body must be a JSON object."),
        (
            b'{"a":NaN,"b":"' + b"x" * 65_536 + b'"}',
            "The request body is not strict JSON in UTF-8.",
        ),
        (
            gzip.compress(b" " * 1_048_577),
            "The request body decompresses to more than 1048576 bytes.",
        ),
        (b"\x1f\x8bnonsense", "The request body is not valid gzip."),
        (gzip.compress(b"{}")[:-4], "The request body is not one complete gzip member."),
        (gzip.compress(b"{}") * 2, "The request body is not one complete gzip member."),
    ],
)
def test_what_nobody_can_read(body: bytes, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(Endpoint.CHAT, body)
    assert (caught.value.message, caught.value.param) == (message, None)


@pytest.mark.parametrize("more", [b"", b',"a":NaN'], ids=["strict", "lenient"])
@pytest.mark.parametrize(
    ("endpoint", "member"),
    [
        (Endpoint.CHAT, b"messages"),
        (Endpoint.CHAT, b"stop"),
        (Endpoint.CHAT, b"stream_options"),
        (Endpoint.CHAT, b"tool_choice"),
        (Endpoint.CHAT, b"unknown"),
        (Endpoint.COMPLETIONS, b"prompt"),
        (Endpoint.MESSAGES, b"thinking"),
        (Endpoint.GENERATE, b"sampling_params"),
    ],
)
def test_nesting_of_any_depth_is_read_and_written_or_refused(
    endpoint: Endpoint, member: bytes, more: bytes
) -> None:
    """Around the interpreter's own limit too, where it depends on who calls the decoder."""
    refused = 0
    for depth in (10, *range(880, 1010), 20_000):
        for opening, closing in ((b"[", b"]"), (b'{"type":', b"}")):
            nested = opening * depth + b"1" + closing * depth
            try:
                call = read(endpoint, b'{"%s":%s%s}' % (member, nested, more))
            except Unreadable:
                refused += 1
            else:
                rewrite(call, max_output=512, priority=1, stop=("END",))
    assert refused > 0


@pytest.mark.parametrize("best_of", [21, 2**62])
def test_a_choice_that_no_engine_makes_is_not_promised(best_of: int) -> None:
    with pytest.raises(Unreadable, match=r"^best_of must be at most 20\.$") as caught:
        call(best_of=best_of)
    assert caught.value.param == "best_of"
    assert call(best_of=20).choices == 20


@pytest.mark.parametrize(
    "dense",
    [
        b'{"messages":[' + b"[]," * 200_000 + b"[]]}",
        b'{"messages":[' + b'{"a":0},' * 70_000 + b"{}]}",
        b'{"prompt":[' + b'"a",' * 150_000 + b'"a"]}',
        b"{" + b",".join(b'"%d":0' % number for number in range(60_000)) + b" " * 80_000 + b"}",
    ],
    ids=["arrays", "objects", "strings", "members"],
)
def test_long_bodies_of_nothing_but_structure_are_refused(dense: bytes) -> None:
    """They would hold up everyone else for longer than we may."""
    with pytest.raises(Unreadable) as caught:
        read(Endpoint.CHAT, dense)
    message = "The request body has more than 100000 strings and brackets."
    assert (caught.value.message, caught.value.param) == (message, None)


@pytest.mark.parametrize(
    "members",
    [
        {"prompt": list(range(150_000))},
        {"prompt": 'He said: "no".\n' * 60_000},
        {"prompt": json.dumps({"rows": [["a", "b"]] * 20_000, "pad": "x" * 400_000})},
    ],
    ids=["token ids", "dialogue", "a JSON document"],
)
def test_long_prompts_are_read(members: dict[str, Any]) -> None:
    assert call(Endpoint.COMPLETIONS, **members).prompt_tokens > 100_000


def test_a_gzip_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_DECOMPRESSED", 1000)
    with pytest.raises(Unreadable, match="decompresses to more than 1000 bytes"):
        read(Endpoint.CHAT, gzip.compress(b" " * 100_000))


@pytest.mark.parametrize(
    ("endpoint", "member", "value"),
    [
        (Endpoint.CHAT, "max_tokens", "many"),
        (Endpoint.CHAT, "max_completion_tokens", 5.5),
        (Endpoint.CHAT, "min_tokens", []),
        (Endpoint.CHAT, "n", "x"),
        (Endpoint.CHAT, "model", 5),
        (Endpoint.CHAT, "stream", "maybe"),
        (Endpoint.RESPONSES, "max_output_tokens", {}),
        (Endpoint.RESPONSES, "background", 3),
        (Endpoint.GENERATE, "sampling_params", []),
    ],
)
def test_members_that_the_engine_refuses(endpoint: Endpoint, member: str, value: Any) -> None:
    with pytest.raises(Unreadable) as caught:
        call(endpoint, **{member: value})
    assert caught.value.param == member


def test_include_usage_that_is_no_boolean() -> None:
    with pytest.raises(Unreadable) as caught:
        call(stream_options={"include_usage": "x"})
    assert caught.value.param == "stream_options.include_usage"


def test_generate_read_leniently() -> None:
    body = b'{"sampling_params":{"max_tokens":900,"temperature":NaN}}'
    read_ = read(Endpoint.GENERATE, body)
    assert read_.max_output == 900
    written = rewrite(read_, max_output=512)
    assert written is not None
    assert json.loads(written)["sampling_params"]["max_tokens"] == 512


# A valid result or a declared error, nothing else.


NAMES = st.sampled_from(
    [
        *("model", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
        *("max_output_tokens", "min_tokens", "n", "best_of", "priority", "stop", "messages"),
        *("stop_sequences", "prompt", "prompt_embeds", "input", "thinking", "tool_choice"),
        *("response_format", "text", "metadata", "sampling_params", "structured_outputs", "x"),
    ]
)


INNER = st.sampled_from(["type", "format", "include_usage", "budget_tokens", "max_tokens", "n"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5000)
    | st.integers()
    | st.floats()
    | st.sampled_from(["5", "900", "true", "enabled", "required", "\ud800", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(INNER, inner, max_size=3),
    max_leaves=6,
)


BODIES = (
    st.binary(max_size=40)
    | st.dictionaries(NAMES, VALUES, max_size=6).map(lambda tree: json.dumps(tree).encode())
    | st.lists(st.tuples(NAMES, VALUES), max_size=6).map(
        lambda pairs: (
            "{"
            + ",".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs)
            + "}"
        ).encode()
    )
)


@given(st.sampled_from(Endpoint), BODIES, st.integers(1, 4000), st.none() | st.integers(-5, 5))
def test_fuzz(endpoint: Endpoint, body: bytes, most: int, priority: int | None) -> None:
    try:
        read_ = read(endpoint, body)
    except Unreadable:
        return
    assert read_.choices >= 1
    assert read_.prompt_tokens >= 1
    written = rewrite(read_, max_output=most, priority=priority, stop=("END",), include_usage=True)
    before = json.loads(body)
    after = before if written is None else json.loads(written)
    again = read(endpoint, body if written is None else written)
    if read_.endpoint is not Endpoint.EMBEDDINGS:
        assert (16 if again.max_output is None else again.max_output) <= max(most, 16)
        assert again.max_output is not None or read_.endpoint is Endpoint.COMPLETIONS
        assert all(length <= most for length in again.lengths.values())
    sent = None if read_.endpoint is Endpoint.MESSAGES else priority
    assert after.get("priority") == sent
    touched = {*read_.lengths, "priority", "stop", "stop_sequences", "thinking", "stream_options"}
    touched |= {"max_tokens", "max_output_tokens", "sampling_params"}
    for name in before.keys() - touched:
        assert json.dumps(after[name]) == json.dumps(before[name])
    assert rewrite(again, max_output=most, priority=priority, stop=("END",)) is None
