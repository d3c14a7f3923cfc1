from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.endpoints import Endpoint
from extproc.openai.replies import Reply, error, fallback
from extproc.openai.requests import read

JSON_HEADERS = (("content-type", "application/json"), ("retry-after", "15"))
SSE_HEADERS = (("content-type", "text/event-stream"), ("retry-after", "15"))
FORCED: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"response_format": {"type": "json_object"}},
    Endpoint.COMPLETIONS: {"response_format": {"type": "json_object"}},
    Endpoint.RESPONSES: {"text": {"format": {"type": "json_object"}}},
    Endpoint.MESSAGES: {"tool_choice": {"type": "any"}},
}


def shed(endpoint: Endpoint, **members: Any) -> Reply:
    options: dict[str, Any] = {
        "ident": "7",
        "created": 1700000000,
        "message": "请稍候",
        "finish_reason": "load_shedding_fallback",
        "reason": "kv_watermark",
        "ticket": "t1",
        "retry_after": 15,
    }
    options |= {name: members.pop(name) for name in [*options, "refusal"] if name in members}
    call = read(endpoint, json.dumps({"model": "qwen", **members}).encode())
    return fallback(call, **options)


def golden(text: str) -> bytes:
    """Join lines that are broken here only because they are long."""
    return text.strip("\n").replace("\\\n", "").encode()


def test_chat() -> None:
    assert shed(Endpoint.CHAT) == Reply(
        200,
        JSON_HEADERS,
        golden(r"""
{"id":"chatcmpl-promo-shedded-7","object":"chat.completion","created":1700000000,"model":"qwen",\
"choices":[{"index":0,"message":{"role":"assistant","content":"请稍候"},\
"finish_reason":"load_shedding_fallback"}],\
"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0},\
"tidegate":{"reason":"kv_watermark","ticket":"t1"}}
"""),
    )


CHAT_STREAM = r"""
data: {"id":"chatcmpl-promo-shedded-7","object":"chat.completion.chunk","created":1700000000,\
"model":"qwen","choices":[{"index":0,"delta":{"role":"assistant","content":""},\
"finish_reason":null}]}

data: {"id":"chatcmpl-promo-shedded-7","object":"chat.completion.chunk","created":1700000000,\
"model":"qwen","choices":[{"index":0,"delta":{"content":"请稍候"},"finish_reason":null}]}

data: {"id":"chatcmpl-promo-shedded-7","object":"chat.completion.chunk","created":1700000000,\
"model":"qwen","choices":[{"index":0,"delta":{},"finish_reason":"load_shedding_fallback"}],\
"tidegate":{"reason":"kv_watermark","ticket":"t1"}}
"""
CHAT_USAGE = r"""
data: {"id":"chatcmpl-promo-shedded-7","object":"chat.completion.chunk","created":1700000000,\
"model":"qwen","choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}
"""
DONE = "\ndata: [DONE]\n\n"


def test_chat_stream() -> None:
    reply = shed(Endpoint.CHAT, stream=True)
    assert reply == Reply(200, SSE_HEADERS, golden(CHAT_STREAM) + f"\n{DONE}".encode())


def test_chat_stream_with_usage() -> None:
    reply = shed(Endpoint.CHAT, stream=True, stream_options={"include_usage": True})
    expected = golden(CHAT_STREAM) + b"\n\n" + golden(CHAT_USAGE) + f"\n{DONE}".encode()
    assert reply.body == expected


def test_completion() -> None:
    assert shed(Endpoint.COMPLETIONS) == Reply(
        200,
        JSON_HEADERS,
        golden(r"""
{"id":"cmpl-promo-shedded-7","object":"text_completion","created":1700000000,"model":"qwen",\
"choices":[{"index":0,"text":"请稍候","logprobs":null,"finish_reason":"load_shedding_fallback"}],\
"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0},\
"tidegate":{"reason":"kv_watermark","ticket":"t1"}}
"""),
    )


COMPLETION_STREAM = r"""
data: {"id":"cmpl-promo-shedded-7","object":"text_completion","created":1700000000,"model":"qwen",\
"choices":[{"index":0,"text":"请稍候","logprobs":null,"finish_reason":null}]}

data: {"id":"cmpl-promo-shedded-7","object":"text_completion","created":1700000000,"model":"qwen",\
"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"load_shedding_fallback"}],\
"tidegate":{"reason":"kv_watermark","ticket":"t1"}}
"""
COMPLETION_USAGE = r"""
data: {"id":"cmpl-promo-shedded-7","object":"text_completion","created":1700000000,"model":"qwen",\
"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}
"""


def test_completion_stream() -> None:
    reply = shed(Endpoint.COMPLETIONS, stream=True)
    assert reply == Reply(200, SSE_HEADERS, golden(COMPLETION_STREAM) + f"\n{DONE}".encode())


def test_completion_stream_with_usage() -> None:
    reply = shed(Endpoint.COMPLETIONS, stream=True, stream_options={"include_usage": True})
    expected = golden(COMPLETION_STREAM) + b"\n\n" + golden(COMPLETION_USAGE)
    assert reply.body == expected + f"\n{DONE}".encode()


RESPONSE_HEAD = r"""
{"id":"resp_promo_shedded_7","object":"response","created_at":1700000000,"status":"STATUS",\
"model":"qwen","output":[OUTPUT],"error":null,"incomplete_details":null,\
"parallel_tool_calls":true,"tool_choice":"auto","tools":[],\
"metadata":{"tidegate_reason":"kv_watermark","ticket":"t1"},"usage":USAGE}
"""
ITEM = r"""
{"id":"msg_promo_shedded_7","type":"message","status":"STATUS","role":"assistant",\
"content":[CONTENT]}
"""
OUTPUT_TEXT = '{"type":"output_text","text":"请稍候","annotations":[],"logprobs":[]}'
REFUSAL = '{"type":"refusal","refusal":"请稍候"}'
NO_TOKENS = (
    '{"input_tokens":0,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,'
    '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}'
)


def item(status: str, content: str) -> str:
    text = golden(ITEM).decode()
    return text.replace("STATUS", status).replace("CONTENT", content)


def response(status: str, content: str | None) -> str:
    output = "" if content is None else item("completed", content)
    usage = "null" if content is None else NO_TOKENS
    head = golden(RESPONSE_HEAD).decode()
    return head.replace("STATUS", status).replace("OUTPUT", output).replace("USAGE", usage)


def test_response() -> None:
    expected = response("completed", OUTPUT_TEXT).encode()
    assert shed(Endpoint.RESPONSES) == Reply(200, JSON_HEADERS, expected)


def response_stream(
    part: str, empty: str, kind: str, text: str, logprobs: str
) -> list[tuple[str, str]]:
    at = '"item_id":"msg_promo_shedded_7","output_index":0,"content_index":0'
    begun = f'"response":{response("in_progress", None)}'
    return [
        ("response.created", begun),
        ("response.in_progress", begun),
        ("response.output_item.added", f'"output_index":0,"item":{item("in_progress", "")}'),
        ("response.content_part.added", f'{at},"part":{empty}'),
        (f"response.{kind}.delta", f'{at},"delta":"请稍候"{logprobs}'),
        (f"response.{kind}.done", f'{at},"{text}":"请稍候"{logprobs}'),
        ("response.content_part.done", f'{at},"part":{part}'),
        ("response.output_item.done", f'"output_index":0,"item":{item("completed", part)}'),
        ("response.completed", f'"response":{response("completed", part)}'),
    ]


def numbered(events: list[tuple[str, str]]) -> bytes:
    return "".join(
        f'event: {name}\ndata: {{"type":"{name}","sequence_number":{number},{data}}}\n\n'
        for number, (name, data) in enumerate(events)
    ).encode()


def test_response_stream() -> None:
    empty = OUTPUT_TEXT.replace("请稍候", "")
    events = response_stream(OUTPUT_TEXT, empty, "output_text", "text", ',"logprobs":[]')
    reply = shed(Endpoint.RESPONSES, stream=True)
    assert reply == Reply(200, SSE_HEADERS, numbered(events))


def test_message() -> None:
    assert shed(Endpoint.MESSAGES) == Reply(
        200,
        JSON_HEADERS,
        golden(r"""
{"id":"msg_promo_shedded_7","type":"message","role":"assistant","model":"qwen",\
"content":[{"type":"text","text":"请稍候"}],"stop_reason":"load_shedding_fallback",\
"stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}
"""),
    )


def test_message_stream() -> None:
    expected = golden(r"""
event: message_start
data: {"type":"message_start","message":{"id":"msg_promo_shedded_7","type":"message",\
"role":"assistant","model":"qwen","content":[],"stop_reason":null,"stop_sequence":null,\
"usage":{"input_tokens":0,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"请稍候"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"load_shedding_fallback",\
"stop_sequence":null},"usage":{"input_tokens":0,"output_tokens":0}}

event: message_stop
data: {"type":"message_stop"}
""")
    assert shed(Endpoint.MESSAGES, stream=True) == Reply(200, SSE_HEADERS, expected + b"\n\n")


def test_without_a_ticket() -> None:
    chat = json.loads(shed(Endpoint.CHAT, ticket=None).body)
    assert chat["tidegate"] == {"reason": "kv_watermark"}
    metadata = json.loads(shed(Endpoint.RESPONSES, ticket=None).body)["metadata"]
    assert metadata == {"tidegate_reason": "kv_watermark"}


# Where plain text would break the client.


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES])
def test_structured_calls_get_an_error(endpoint: Endpoint, stream: bool) -> None:
    assert shed(endpoint, stream=stream, **FORCED[endpoint]) == Reply(
        429,
        (*JSON_HEADERS, ("x-should-retry", "false")),
        '{"error":{"message":"请稍候","type":"rate_limit_error","param":null,'
        '"code":"kv_watermark"}}'.encode(),
    )


def test_structured_messages_get_an_error() -> None:
    assert shed(Endpoint.MESSAGES, **FORCED[Endpoint.MESSAGES]) == Reply(
        429,
        (*JSON_HEADERS, ("x-should-retry", "false")),
        '{"type":"error","error":{"type":"rate_limit_error","message":"请稍候"}}'.encode(),
    )


def test_chat_refusal() -> None:
    reply = shed(Endpoint.CHAT, refusal=True, **FORCED[Endpoint.CHAT])
    assert reply.status == 200
    assert json.loads(reply.body)["choices"][0]["message"] == {
        "role": "assistant",
        "content": "请稍候",
        "refusal": "请稍候",
    }
    reply = shed(Endpoint.CHAT, refusal=True, stream=True, **FORCED[Endpoint.CHAT])
    assert '"delta":{"content":"请稍候","refusal":"请稍候"}' in reply.body.decode()


def test_response_refusal() -> None:
    reply = shed(Endpoint.RESPONSES, refusal=True, **FORCED[Endpoint.RESPONSES])
    assert reply == Reply(200, JSON_HEADERS, response("completed", REFUSAL).encode())
    reply = shed(Endpoint.RESPONSES, refusal=True, stream=True, **FORCED[Endpoint.RESPONSES])
    events = response_stream(REFUSAL, REFUSAL.replace("请稍候", ""), "refusal", "refusal", "")
    assert reply == Reply(200, SSE_HEADERS, numbered(events))


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.MESSAGES])
def test_endpoints_that_know_no_refusal_answer_as_ever(endpoint: Endpoint) -> None:
    assert shed(endpoint, refusal=True, **FORCED[endpoint]) == shed(endpoint)


@pytest.mark.parametrize("endpoint", list(FORCED))
def test_other_calls_are_never_refused(endpoint: Endpoint) -> None:
    assert shed(endpoint, refusal=True) == shed(endpoint)


@pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.COHERE])
def test_endpoints_without_a_shape(endpoint: Endpoint) -> None:
    assert shed(endpoint, stream=True) == Reply(
        503,
        JSON_HEADERS,
        '{"error":{"message":"请稍候","type":"overloaded_error","param":null,'
        '"code":"kv_watermark"}}'.encode(),
    )


# Errors.


def test_an_error() -> None:
    reply = error(
        Endpoint.CHAT,
        status=400,
        message="max_tokens must be an integer.",
        type="invalid_request_error",
        code=400,
        param="max_tokens",
    )
    assert reply == Reply(
        400,
        (("content-type", "application/json"),),
        b'{"error":{"message":"max_tokens must be an integer.","type":"invalid_request_error",'
        b'"param":"max_tokens","code":400}}',
    )


@pytest.mark.parametrize(("seconds", "header"), [(-3, "1"), (0, "1"), (7, "7"), (600, "60")])
def test_retry_after_stays_within_what_clients_honour(seconds: int, header: str) -> None:
    reply = error(Endpoint.CHAT, status=429, message="", type="", retry_after=seconds)
    assert ("retry-after", header) in reply.headers


# Texts.


def test_half_an_emoji_is_replaced() -> None:
    message = json.loads(shed(Endpoint.MESSAGES, message="a\ud83d").body)
    assert message["content"] == [{"type": "text", "text": "a?"}]


TEXTS = st.text() | st.sampled_from(
    ['"\\', "a\nb\r\nc", "\u2028\u2029\u0085", "\0\x1f\x7f", "data: [DONE]\n\n", "\ud800", "🎉"]
)


@given(st.sampled_from(list(FORCED)), TEXTS, TEXTS, st.booleans())
def test_any_text_survives(endpoint: Endpoint, message: str, finish: str, stream: bool) -> None:
    reply = shed(endpoint, stream=stream, message=message, finish_reason=finish, model="m\u2028")
    sent = message.encode("utf-8", "replace").decode()
    if not stream:
        assert sent in _strings(json.loads(reply.body))
        return
    events = reply.body.decode().split("\n\n")
    assert events.pop() == ""
    seen: list[str] = []
    for event in events:
        *name, data = event.splitlines()
        assert len(name) == (endpoint in (Endpoint.RESPONSES, Endpoint.MESSAGES))
        assert data.startswith("data: ")
        if data != "data: [DONE]":
            seen += _strings(json.loads(data.removeprefix("data: ")))
    assert sent in seen


def _strings(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        return [text for value in tree.values() for text in _strings(value)]
    if isinstance(tree, list):
        return [text for value in tree for text in _strings(value)]
    return [tree] if isinstance(tree, str) else []
