"""Chat and completions in a stream: read, stopped, cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.openai import sse
from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.streams import Edit, Editor, Ending, Usage

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 16, "total_tokens": 21, "completion_tokens": 5}
ENDING = Ending("load_shedding_fallback", "请稍候", {"reason": "evicted"}, b"whole")
JSON_TASK = EarlyStop(complete_json=True)

Make = Callable[..., Editor]
Feed = Callable[..., tuple[bytes, bool]]


def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 17, "model": "qwen"}
    return b"data: %s\n\n" % json.dumps({**head, "choices": choices, **more}).encode()


def say(content: str | None, index: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    delta = {"content": content, **delta} if content is not None else delta
    return event([{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}])


def text(content: str, finish: str | None = None) -> bytes:
    return event([{"index": 0, "text": content, "finish_reason": finish}])


ROLE = say("", role="assistant")
TOLD = event([], usage=USAGE)
TOOL = say(None, tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}])


def written(data: bytes) -> list[Any]:
    """The events that are not as the engine sent them, ``[DONE]`` left out."""
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# Read.


@pytest.mark.parametrize(
    ("stream", "usage", "tokens", "finish"),
    [
        ([ROLE, say("a"), say("b", finish="length"), DONE], None, 2, "length"),
        # Usage at the end, before and after [DONE], and not taken away by it.
        ([ROLE, say("a", finish="stop"), TOLD, DONE], Usage(16, 5), 5, "stop"),
        ([ROLE, say("a", finish="stop"), DONE, TOLD], Usage(16, 5), 5, "stop"),
        # Usage in every chunk: the last wins.
        (
            [
                event([], usage={"prompt_tokens": 16, "completion_tokens": 0}),
                event([{"delta": {"content": "a"}}], usage={"completion_tokens": 1}),
                event([{"delta": {"content": "b"}}], usage={"completion_tokens": 2}),
                DONE,
            ],
            Usage(16, 2),
            2,
            None,
        ),
        # Odd types beside it.
        ([event([], usage="much"), event([], usage=None), TOLD], Usage(16, 5), 5, None),
        ([b'data: {"choices":7,"usage":{"prompt_tokens":"4"}}\n\n'], Usage(4, 0), 0, None),
        ([b"data: [1]\n\n", b"data: oops\n\n", TOLD], Usage(16, 5), 5, None),
        # Thoughts, refusals and calls of tools are tokens as well.
        (
            [
                say(None, reasoning_content="hm"),
                say(None, reasoning="hm"),
                say(None, refusal="no"),
                TOOL,
                say(None, function_call={"name": "f"}),
                say("", tool_calls=[]),
                say(None, tool_calls=None),
            ],
            None,
            5,
            None,
        ),
        ([b'data: {"error":{"message":"out of memory"}}\n\n', DONE], None, 0, "error"),
        ([text(""), text("a"), text("b", finish="stop"), DONE], None, 2, "stop"),
    ],
)
@pytest.mark.parametrize("early_stop", [EarlyStop(), EarlyStop(True, True, True, ("zz", "yy"))])
def test_a_stream_passes_as_it_is(
    editor: Make,
    edited: Feed,
    early_stop: EarlyStop,
    stream: list[bytes],
    usage: Usage | None,
    tokens: int,
    finish: str | None,
) -> None:
    reading = editor(CHAT, early_stop=early_stop)
    assert edited(reading, *stream) == (b"".join(stream), False)
    assert (reading.usage, reading.delivered_tokens, reading.finish) == (usage, tokens, finish)
    bytewise = b"".join(stream)
    again = editor(CHAT, early_stop=early_stop)
    assert edited(again, *(bytewise[i : i + 1] for i in range(len(bytewise)))) == (bytewise, False)
    assert again.usage == usage


def test_usage_that_only_we_wanted_is_left_out(editor: Make, edited: Feed) -> None:
    stream = (ROLE, say("a", finish="stop"), event([], prompt_filter_results=[]), TOLD, DONE)
    stripping = editor(CHAT, strip_usage=True)
    assert edited(stripping, *stream) == (b"".join([*stream[:3], DONE]), False)
    assert stripping.usage == Usage(16, 5)


def test_usage_in_a_chunk_with_text_stays(editor: Make, edited: Feed) -> None:
    stream = event([{"index": 0, "delta": {"content": "a"}}], usage=USAGE)
    assert edited(editor(CHAT, strip_usage=True), stream) == (stream, False)


# Cut.


def test_an_evicted_stream_ends_well(editor: Make) -> None:
    evicted = editor(CHAT, prompt_tokens=9)
    evicted.feed(ROLE + say("Once upon") + b"data: {half")
    edit = evicted.cut(ENDING)
    assert edit is not None
    assert edit.finished
    assert edit.data.endswith(DONE)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 17, "model": "qwen"}
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    assert written(edit.data) == [
        {**head, "choices": [{**choice, "delta": {"content": "\n\n请稍候"}}]},
        {
            **head,
            "choices": [{**choice, "delta": {}, "finish_reason": "load_shedding_fallback"}],
            "tidegate": {"reason": "evicted"},
        },
    ]
    assert evicted.finish == "load_shedding_fallback"
    assert not evicted.cuttable
    assert evicted.feed(say(" a time") + DONE, end=True) == Edit(b"", finished=True)
    assert evicted.cut(ENDING) == Edit(b"", finished=True)


def test_usage_is_told_where_it_was_asked_for(editor: Make) -> None:
    evicted = editor(CHAT, prompt_tokens=9, include_usage=True)
    evicted.feed(ROLE + say("Once") + say(" upon"))
    edit = evicted.cut(Ending("stop"))
    assert edit is not None
    assert [chunk["choices"] for chunk in written(edit.data)] == [
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert written(edit.data)[-1]["usage"] == {
        "prompt_tokens": 9,
        "total_tokens": 11,
        "completion_tokens": 2,
    }


def test_what_the_engine_has_counted_is_told(editor: Make) -> None:
    evicted = editor(CHAT, prompt_tokens=9, include_usage=True)
    evicted.feed(event([{"index": 0, "delta": {"content": "a"}}], usage=USAGE))
    edit = evicted.cut(Ending("stop"))
    assert edit is not None
    assert written(edit.data)[-1]["usage"] == USAGE


def test_every_choice_is_ended(editor: Make) -> None:
    evicted = editor(CHAT, choices=3)
    evicted.feed(ROLE + say("", 1, role="assistant") + say("", 2, role="assistant"))
    evicted.feed(say("a") + say("b", 1) + say("c", 2, finish="stop"))
    edit = evicted.cut(ENDING)
    assert edit is not None
    choices = [chunk["choices"][0] for chunk in written(edit.data)]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [
        (0, None),
        (0, "load_shedding_fallback"),
        (1, None),
        (1, "load_shedding_fallback"),
    ]


def test_a_completion_is_cut(editor: Make) -> None:
    evicted = editor(COMPLETIONS)
    evicted.feed(text("Once"))
    edit = evicted.cut(ENDING)
    assert edit is not None
    assert [chunk["choices"] for chunk in written(edit.data)] == [
        [{"index": 0, "text": "\n\n请稍候", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "load_shedding_fallback"}],
    ]


def test_before_the_first_event_the_fallback_is_the_answer(editor: Make) -> None:
    evicted = editor(CHAT, structured=True)
    evicted.feed(b": ping\n\n")
    assert evicted.cuttable
    assert evicted.cut(Ending("stop")) is None
    assert evicted.cut(ENDING) == Edit(b"whole", finished=True)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (say(None, reasoning_content="hm"), "请稍候"),
        (event([], prompt_filter_results=[]), "请稍候"),
    ],
)
def test_a_message_that_follows_nothing(editor: Make, stream: bytes, message: str) -> None:
    evicted = editor(CHAT)
    evicted.feed(stream)
    edit = evicted.cut(ENDING)
    assert edit is not None
    assert written(edit.data)[0]["choices"][0]["delta"]["content"] == message


@pytest.mark.parametrize(
    "delivered",
    [
        TOOL,
        say(None, function_call={"name": "f", "arguments": "{"}),
        say("calling", tool_calls=[{"index": 0}]),
        b"data: {not read\n\n",
        b'data: {"error":{}}\n\n',
    ],
    ids=["tool", "function", "text and tool", "unreadable", "error"],
)
def test_what_cannot_end_well_is_not_ended(editor: Make, delivered: bytes) -> None:
    """Clients would complete the half JSON of a call and run the tool with it."""
    running = editor(CHAT, early_stop=JSON_TASK)
    running.feed(ROLE + say("a"))
    before = running.cuttable
    running.feed(delivered)
    assert (before, running.cuttable) == (True, False)
    assert running.cut(ENDING) is None
    assert running.feed(say("[1]") + DONE) == Edit(say("[1]") + DONE)


def test_after_an_event_that_was_too_long_to_read_it_is_not_ended(
    editor: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LONGEST_EVENT", 400)
    running = editor(CHAT)
    running.feed(ROLE)
    passed = running.feed(b"data: " + b"x" * 500).data + running.feed(b"y\n\n" + DONE[:5]).data
    assert passed == b"data: " + b"x" * 500 + b"y\n\n"
    assert running.cut(ENDING) is None


def test_structured_output_is_not_ended(editor: Make) -> None:
    running = editor(CHAT, structured=True)
    running.feed(ROLE + say('{"a"'))
    assert not running.cuttable
    assert running.cut(ENDING) is None


def test_an_end_of_its_own_is_left_alone(editor: Make) -> None:
    ended = editor(CHAT, include_usage=True)
    ended.feed(ROLE + say("a", finish="stop") + TOLD)
    edit = ended.cut(ENDING)
    assert edit == Edit(DONE, finished=True)
    done = editor(CHAT)
    done.feed(ROLE + say("a", finish="stop") + DONE)
    assert done.cut(ENDING) == Edit(b"", finished=True)
    assert (ended.finish, done.finish) == ("stop", "stop")
