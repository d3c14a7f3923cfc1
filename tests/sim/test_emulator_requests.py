"""What bodies mean, and what is said to bad ones, in vLLM's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.emulator.requests import Call, Endpoint, Prompt, read_call, read_tokenize
from extproc.sim.emulator.schema import RefusedError

HELLO = [{"role": "user", "content": "hello"}]


def read(endpoint: Endpoint, body: object) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_call(endpoint, raw, model="tiny", max_model_len=2048)


def chat(**fields: Any) -> Call:
    return read(Endpoint.CHAT, {"model": "tiny", "messages": HELLO, **fields})


def completion(**fields: Any) -> Call:
    return read(Endpoint.COMPLETIONS, {"model": "tiny", "prompt": "abcd", **fields})


def refusal(endpoint: Endpoint, body: object) -> tuple[int, str, str, str | None]:
    with pytest.raises(RefusedError) as caught:
        read(endpoint, body)
    error = caught.value
    return error.status, error.kind, error.message, error.param


def test_chat_prompt_is_rendered_and_counted_four_bytes_a_token() -> None:
    text = b"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert chat().prompts == (Prompt(text),)
    assert chat().prompt_tokens == 14


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": "7"}, 7),
        ({"max_tokens": 7.0}, 7),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 7, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
        ({}, 2048 - 14),
        ({"max_tokens": 2048}, 2048 - 14),
    ],
)
def test_chat_limit(fields: dict[str, object], limit: int) -> None:
    assert chat(**fields).max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 16),
        ({"max_completion_tokens": 3}, 16),
        ({"max_tokens": None}, 16),
        ({"max_tokens": 5}, 5),
    ],
)
def test_completions_limit_is_16_unless_max_tokens_says_otherwise(
    fields: dict[str, object], limit: int
) -> None:
    assert completion(**fields).max_tokens == limit


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("abcd", [1]),
        ("abcde", [2]),
        ("", [1]),
        ("我们", [2]),
        ([5, 6, 7], [3]),
        (["a", "b"], [1, 1]),
        ([[1, 2], [3]], [2, 1]),
    ],
)
def test_completions_prompts(prompt: object, tokens: list[int]) -> None:
    assert [p.tokens for p in completion(prompt=prompt).prompts] == tokens


@pytest.mark.parametrize("prompt", [None, [], [[]], [{}], 5, ["a", 1]])
def test_completions_without_a_prompt(prompt: object) -> None:
    body = {"model": "tiny", "prompt": prompt}
    assert refusal(Endpoint.COMPLETIONS, body) == (
        400,
        "BadRequestError",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
        "prompt",
    )


def test_responses_and_messages_read_their_own_fields() -> None:
    body: dict[str, object] = {"input": "hello", "instructions": "be kind", "max_output_tokens": 4}
    response = read(Endpoint.RESPONSES, body)
    assert b"system\nbe kind<|im_end|>\n<|im_start|>user\nhello" in response.prompts[0].text
    assert (response.max_tokens, response.requested_max_tokens) == (4, 4)
    body = {"model": "tiny", "messages": HELLO, "system": [{"type": "text", "text": "be kind"}]}
    message = read(Endpoint.MESSAGES, body | {"max_tokens": 9, "priority": 3, "n": 5})
    assert b"system\nbe kind<|im_end|>" in message.prompts[0].text
    assert (message.max_tokens, message.priority, message.n) == (9, 0, 1)


def test_content_parts_and_tools_are_part_of_the_prompt() -> None:
    parts = [
        {"type": "text", "text": "one "},
        {"type": "image_url"},
        {"type": "text", "text": "two"},
    ]
    call = chat(messages=[{"role": "user", "content": parts}], tools=[{"type": "function"}])
    assert call.prompts[0].text == (
        b'[{"type": "function"}]<|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n'
    )


def test_stream_options() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = chat(stream=True, stream_options=options)
    assert (call.stream, call.include_usage, call.continuous_usage) == (True, True, True)
    call = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert (call.include_usage, call.continuous_usage) == (False, False)


@pytest.mark.parametrize(
    ("given_", "stream"),
    [(True, True), ("yes", True), (1, True), (0, False), ("Off", False), (None, False)],
)
def test_booleans(given_: object, stream: bool) -> None:
    assert chat(stream=given_).stream is stream


def test_sampling_fields() -> None:
    call = chat(n=2, ignore_eos=True, min_tokens=50, max_tokens=9, priority="-3")
    assert (call.n, call.ignore_eos, call.min_tokens, call.priority) == (2, True, 9, -3)


@pytest.mark.parametrize("model", [None, "", "tiny"])
def test_model_may_be_left_out(model: str | None) -> None:
    assert chat(model=model).prompt_tokens == 14


INPUT = "Input should be a valid integer"


@pytest.mark.parametrize(
    ("fields", "problem", "param"),
    [
        (
            {"messages": None},
            (
                "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', "
                "'input': 'None'}"
            ),
            "body.messages",
        ),
        (
            {"priority": 1.5},
            (
                f"{{'type': 'int_from_float', 'loc': 'body.priority', 'msg': '{INPUT}, got a number with a "
                "fractional part', 'input': '1.5'}"
            ),
            "body.priority",
        ),
        (
            {"priority": None},
            f"{{'type': 'int_type', 'loc': 'body.priority', 'msg': '{INPUT}', 'input': 'None'}}",
            "body.priority",
        ),
        (
            {"priority": "high"},
            (
                f"{{'type': 'int_parsing', 'loc': 'body.priority', 'msg': '{INPUT}, unable to parse string "
                "as an integer', 'input': 'high'}"
            ),
            "body.priority",
        ),
        (
            {"priority": 10**23},
            (
                "{'type': 'less_than_equal', 'loc': 'body.priority', 'msg': 'Input should be less than or "
                "equal to 9223372036854775807', 'input': '100000000000000000000000', "
                "'ctx': {'le': 9223372036854775807}}"
            ),
            "body.priority",
        ),
        (
            {"priority": -(10**23)},
            (
                "{'type': 'greater_than_equal', 'loc': 'body.priority', 'msg': 'Input should be greater "
                "than or equal to -9223372036854775808', 'input': '-100000000000000000000000', "
                "'ctx': {'ge': -9223372036854775808}}"
            ),
            "body.priority",
        ),
        (
            {"stream": "maybe"},
            (
                "{'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input should be a valid boolean, "
                "unable to interpret input', 'input': 'maybe'}"
            ),
            "body.stream",
        ),
        (
            {"stream": []},
            (
                "{'type': 'bool_type', 'loc': 'body.stream', 'msg': 'Input should be a valid boolean', "
                "'input': '<list of 0 items>'}"
            ),
            "body.stream",
        ),
        (
            {"model": 5},
            (
                "{'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be a valid string', "
                "'input': '5'}"
            ),
            "body.model",
        ),
    ],
)
def test_wrong_types(fields: dict[str, object], problem: str, param: str) -> None:
    body = {"model": "tiny", "messages": HELLO, **fields}
    message = f"1 validation error:\n  {problem}"
    assert refusal(Endpoint.CHAT, body) == (400, "Bad Request", message, param)


def test_every_problem_is_named() -> None:
    status, _, message, param = refusal(Endpoint.MESSAGES, {"max_tokens": "x"})
    assert (status, param) == (400, "body.model")
    assert message.splitlines() == [
        "3 validation errors:",
        (
            "  {'type': 'missing', 'loc': 'body.model', 'msg': 'Field required', "
            "'input': '<dict of 1 items>'}"
        ),
        (
            "  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', "
            "'input': '<dict of 1 items>'}"
        ),
        (
            "  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, "
            "unable to parse string as an integer', 'input': 'x'}"
        ),
    ]


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (
            b"",
            (
                "1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', "
                "'input': 'None'}"
            ),
            "body",
        ),
        (
            b'{"model": "tiny", "messages": ',
            (
                "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.30', 'msg': 'JSON decode "
                "error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}"
            ),
            "body.30",
        ),
        (
            b"[1]",
            (
                "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input "
                "should be a valid dictionary or object to extract fields from', "
                "'input': '<list of 1 items>'}"
            ),
            "body",
        ),
        (b"\xff\xff\xff", "There was an error parsing the body", None),
        (b"[" * 100_000, "There was an error parsing the body", None),
    ],
)
def test_bodies_that_are_no_objects(body: bytes, message: str, param: str | None) -> None:
    assert refusal(Endpoint.CHAT, body) == (400, "Bad Request", message, param)


def test_unknown_model() -> None:
    assert refusal(Endpoint.CHAT, {"model": "nope", "messages": HELLO}) == (
        404,
        "NotFoundError",
        "The model `nope` does not exist. Valid aliases: tiny.",
        "model",
    )


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        (
            {"max_tokens": 0},
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "max_tokens",
        ),
        (
            {"max_completion_tokens": -1},
            "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",
            "max_tokens",
        ),
        (
            {"max_tokens": 5000},
            (
                "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output "
                "tokens. (parameter=max_tokens, value=5000)"
            ),
            "max_tokens",
        ),
        ({"n": 0}, "n must be at least 1, got 0. (parameter=n, value=0)", "n"),
        ({"n": 999}, "n must be at most 128, got 999. (parameter=n, value=999)", "n"),
        (
            {"stream_options": {"include_usage": True}},
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 8400}]},
            (
                "This model's maximum context length is 2048 tokens. However, your prompt contains 2113 "
                "input tokens, which exceeds this limit even without any output tokens. Please reduce the "
                "length of the input prompt. (parameter=input_tokens, value=2113)"
            ),
            "input_tokens",
        ),
    ],
)
def test_values_that_cannot_be_served(fields: dict[str, object], message: str, param: str) -> None:
    body = {"model": "tiny", "messages": HELLO, **fields}
    assert refusal(Endpoint.CHAT, body) == (400, "BadRequestError", message, param)


def test_equal_beginnings_share_block_names() -> None:
    one, other = Prompt(b"a" * 32 + b"b" * 10), Prompt(b"a" * 32 + b"c" * 17)
    names, others = one.block_names(4), other.block_names(4)
    assert (len(names), len(others)) == (2, 3)
    assert names == others[:2]
    assert names[0] != names[1]  # equal content in another place is another block


def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert read_tokenize(b'{"prompt":"abcd"}') == Prompt(b"abcd")
    assert read_tokenize(json.dumps({"messages": HELLO}).encode()) == chat().prompts[0]
    for body in (b"{}", b"[]"):
        with pytest.raises(RefusedError):
            read_tokenize(body)


TEXT = st.text("ab0 é我\ud800", max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "input", "max_tokens", "n", "stream", "stream_options", "tools"]
)


@given(st.sampled_from(Endpoint), st.dictionaries(FIELDS, JSON))
def test_any_object_gives_a_call_or_a_refusal(endpoint: Endpoint, body: dict[str, Any]) -> None:
    try:
        call = read(endpoint, body)
    except RefusedError as error:
        assert error.status in (400, 404)  # noqa: PT017 - either outcome is right
    else:
        assert 1 <= call.max_tokens < 2048


@given(st.sampled_from(Endpoint), st.binary(max_size=50))
def test_any_bytes_give_a_call_or_a_refusal(endpoint: Endpoint, body: bytes) -> None:
    with pytest.raises(RefusedError):
        read(endpoint, body)
