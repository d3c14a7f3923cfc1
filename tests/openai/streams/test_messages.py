"""Messages in a stream, Anthropic's shape: read, stopped, cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.streams import Edit, Editor, Ending, Usage

ENDING = Ending("load_shedding_fallback", "请稍候", {"reason": "evicted"}, b"whole")
MESSAGES = Endpoint.MESSAGES

Make = Callable[..., Editor]
Feed = Callable[..., tuple[bytes, bool]]


def event(kind: str, **data: Any) -> bytes:
    text = json.dumps({"type": kind, **data}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()


def opening(kind: str, index: int = 0) -> bytes:
    block = {"type": kind, "text": ""} if kind == "text" else {"type": kind}
    return event("content_block_start", index=index, content_block=block)


def say(text: str, index: int = 0) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})


def think(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": text})


def closing(index: int = 0) -> bytes:
    return event("content_block_stop", index=index)


def ends(reason: str, prompt: int, tokens: int, word: str | None = None) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": word}
    usage = {"input_tokens": prompt, "output_tokens": tokens}
    return event("message_delta", delta=delta, usage=usage) + STOP


STOP = event("message_stop")
PING = event("ping")
START = event("message_start", message={"usage": {"input_tokens": 13, "output_tokens": 0}})
TEXT = opening("text")
TOOL = opening("tool_use", 1)


def test_a_stream_passes_as_it_is(editor: Make, edited: Feed) -> None:
    stream = [START, PING, TEXT, say("a"), say("b"), closing(), ends("max_tokens", 13, 3)]
    reading = editor(MESSAGES, early_stop=EarlyStop(True, True, True, ("zz",)))
    assert edited(reading, *stream) == (b"".join(stream), False)
    assert (reading.usage, reading.delivered_tokens) == (Usage(13, 3), 3)
    assert reading.finish == "max_tokens"


def test_usage_in_halves(editor: Make, edited: Feed) -> None:
    """The prompt's in the beginning, the output's at the end."""
    reading = editor(MESSAGES)
    end = event("message_delta", delta={}, usage={"output_tokens": 8})
    edited(reading, START, end, STOP)
    assert (reading.usage, reading.finish) == (Usage(13, 8), None)


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        (
            START + TEXT + say("Once") + say(" upon"),
            say("\n\n请稍候") + closing() + ends("load_shedding_fallback", 13, 2),
        ),
        (START + TEXT, say("请稍候") + closing() + ends("load_shedding_fallback", 13, 0)),
        (
            START,
            TEXT + say("请稍候") + closing() + ends("load_shedding_fallback", 13, 0),
        ),
        (
            START + opening("thinking") + think("hm"),
            closing()
            + opening("text", 1)
            + say("请稍候", 1)
            + closing(1)
            + ends("load_shedding_fallback", 13, 1),
        ),
        (
            START + TEXT + say("a") + closing(),
            opening("text", 1)
            + say("请稍候", 1)
            + closing(1)
            + ends("load_shedding_fallback", 13, 1),
        ),
        # The engine has said why it ends.
        (
            START + TEXT + closing() + event("message_delta", delta={"stop_reason": "end_turn"}),
            STOP,
        ),
    ],
    ids=["text", "empty", "begun", "thought", "between", "ending"],
)
def test_an_evicted_stream_ends_well(editor: Make, passed: bytes, expected: bytes) -> None:
    evicted = editor(MESSAGES, prompt_tokens=9)
    assert evicted.feed(passed) == Edit(passed)
    assert evicted.cut(ENDING) == Edit(expected, finished=True)
    assert evicted.feed(say("more"), end=True) == Edit(b"", finished=True)


def test_an_end_without_a_message(editor: Make) -> None:
    merged = editor(MESSAGES)
    merged.feed(START + TEXT + say("a"))
    expected = closing() + ends("end_turn", 13, 1)
    assert merged.cut(Ending("end_turn")) == Edit(expected, finished=True)


@pytest.mark.parametrize(
    "passed",
    [
        START + TEXT + say("a") + closing() + TOOL,
        START + b"event: x\ndata: {not read\n\n",
        START + event("error", error={"type": "overloaded_error"}),
    ],
    ids=["tool", "unreadable", "error"],
)
def test_what_cannot_end_well_is_not_ended(editor: Make, passed: bytes) -> None:
    running = editor(MESSAGES)
    running.feed(passed)
    assert not running.cuttable
    assert running.cut(ENDING) is None
    later = event("content_block_delta", index=1, delta={"type": "input_json_delta"})
    assert running.feed(later) == Edit(later)


def test_an_error_is_how_it_ended(editor: Make) -> None:
    failed = editor(MESSAGES)
    failed.feed(event("error", error={"type": "overloaded_error"}))
    assert failed.finish == "error"


def test_before_the_first_event_the_fallback_is_the_answer(editor: Make) -> None:
    assert editor(MESSAGES).cut(ENDING) == Edit(b"whole", finished=True)


@pytest.mark.parametrize(
    ("rules", "texts", "passed", "expected"),
    [
        (
            EarlyStop(complete_json=True),
            ["[1", "]", "x"],
            [say("[1"), say("]") + closing() + ends("end_turn", 13, 2), b""],
            "end_turn",
        ),
        (
            EarlyStop(complete_json=True),
            ["[1] x"],
            [say("[1]") + closing() + ends("end_turn", 13, 1)],
            "end_turn",
        ),
        (
            EarlyStop(stop=("END",)),
            ["a E", "ND"],
            [b"", say("a ") + closing() + ends("stop_sequence", 13, 2, "END")],
            "stop_sequence",
        ),
        (
            EarlyStop(whitespace=True),
            [" " * 300, "\n" * 300],
            [say(" " * 300), say("\n" * 300) + closing() + ends("max_tokens", 13, 2)],
            "max_tokens",
        ),
    ],
)
def test_early_stop(
    editor: Make, rules: EarlyStop, texts: list[str], passed: list[bytes], expected: str
) -> None:
    stopped = editor(MESSAGES, early_stop=rules)
    stopped.feed(START + TEXT)
    assert [stopped.feed(say(text)).data for text in texts] == passed
    assert stopped.finish == expected


def test_thoughts_are_no_text(editor: Make) -> None:
    stopped = editor(MESSAGES, early_stop=EarlyStop(complete_json=True))
    thought = START + opening("thinking") + think("[1]") + closing()
    assert stopped.feed(thought) == Edit(thought)
    assert stopped.feed(opening("text", 1) + say("[2]", 1)).finished
