"""Streams that have said all their task wants end there, and well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.streams import Edit, Editor, Ending

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
DONE = b"data: [DONE]\n\n"
JSON = EarlyStop(complete_json=True)
WORDS = EarlyStop(stop=("END", "\n\nUser:"))

Make = Callable[..., Editor]


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    data = {"id": "c", "choices": choices, **more}
    return b"data: %s\n\n" % json.dumps(data, separators=(",", ":")).encode()


def say(content: str, index: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    delta = {"content": content, **delta}
    return event({"index": index, "delta": delta, "finish_reason": finish})


def ends(reason: str, index: int = 0, word: str | None = None) -> bytes:
    choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
    return event(choice | {"stop_reason": word})


ROLE = say("", role="assistant")


def fed(editor: Editor, *chunks: bytes) -> list[Edit]:
    return [editor.feed(chunk) for chunk in chunks]


def test_complete_json_ends_the_stream(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=JSON)
    edits = fed(stopped, ROLE, say('{"a":'), say(" 1}"), say("Hope"), DONE)
    assert edits[:2] == [Edit(ROLE), Edit(say('{"a":'))]
    assert edits[2] == Edit(say(" 1}") + ends("stop") + DONE, finished=True)
    assert edits[3:] == [Edit(b"", finished=True)] * 2
    assert (stopped.finish, stopped.delivered_tokens, stopped.usage) == ("stop", 2, None)
    assert stopped.cut(Ending("stop")) == Edit(b"", finished=True)


def test_what_follows_in_the_same_piece_is_cut_off(editor: Make) -> None:
    (edit,) = fed(editor(CHAT, early_stop=JSON), say('{"a": 1}\n\nHope this', x=1))
    assert edit.data == say('{"a": 1}', x=1) + ends("stop") + DONE


def test_a_code_block_is_closed(editor: Make) -> None:
    *_, edit = fed(editor(CHAT, early_stop=JSON), say("```json\n"), say("[1]\n```"))
    assert json.loads(edit.data.split(b"\n")[0][6:])["choices"][0]["delta"]["content"] == "[1]\n```"
    assert edit.data.endswith(ends("stop") + DONE)


def test_a_stop_word_is_found_over_the_borders_and_left_out(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=WORDS)
    edits = fed(stopped, say("Fine. E"), b": ping\n\n", say("N"), say("D of"), say("it"))
    assert [edit.data for edit in edits[:3]] == [b"", b"", b""]
    assert edits[3] == Edit(
        say("Fine. ") + b": ping\n\n" + ends("stop", word="END") + DONE, finished=True
    )


def test_what_was_no_stop_word_passes_as_it_came(editor: Make) -> None:
    passing = editor(CHAT, early_stop=WORDS)
    edits = fed(passing, say("E"), say("N"), say("T"), say("\n\nUs"))
    assert [edit.data for edit in edits] == [b"", b"", say("E") + say("N") + say("T"), b""]
    assert passing.feed(say("", finish="stop")).data == say("\n\nUs") + say("", finish="stop")
    cut_off = editor(CHAT, early_stop=WORDS)
    cut_off.feed(say("E"))
    assert cut_off.feed(b"data: ", end=True) == Edit(say("E") + b"data: ")


def test_what_waits_does_not_wait_for_ever(editor: Make) -> None:
    passing = editor(CHAT, early_stop=WORDS, choices=2)
    passing.feed(say("E"))
    others = [passing.feed(say("x", 1)).data for _ in range(70)]
    assert others.index(say("E") + say("x", 1) * 64) == 63
    ending = editor(CHAT, early_stop=WORDS)
    assert [edit.data for edit in fed(ending, say("E"), DONE)] == [b"", say("E") + DONE]


def test_what_waits_goes_before_the_end_that_is_asked_for(editor: Make) -> None:
    evicted = editor(CHAT, early_stop=WORDS)
    evicted.feed(say("E"))
    edit = evicted.cut(Ending("stop"))
    assert edit is not None
    assert edit.data.startswith(say("E"))


def test_what_waits_goes_on_with_a_call_of_a_tool(editor: Make) -> None:
    passing = editor(CHAT, early_stop=WORDS)
    tool = say("", tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}])
    assert [edit.data for edit in fed(passing, say("E"), tool, say("ND"))] == [
        b"",
        say("E") + tool,
        say("ND"),
    ]


def test_arguments_of_tools_are_no_text(editor: Make) -> None:
    tool = say("", tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}])
    assert fed(editor(CHAT, early_stop=JSON), ROLE, tool) == [Edit(ROLE), Edit(tool)]


@pytest.mark.parametrize(
    ("rules", "text", "reason"),
    [
        (EarlyStop(repetition=True), "the same again and ", "length"),
        (EarlyStop(whitespace=True), "    ", "length"),
        (EarlyStop(complete_json=True, whitespace=True), "\n ", "length"),
    ],
)
def test_a_runaway_ends_as_at_its_longest(
    editor: Make, rules: EarlyStop, text: str, reason: str
) -> None:
    stopped = editor(CHAT, early_stop=rules, include_usage=True, prompt_tokens=7)
    chunks, edit = 0, stopped.feed(ROLE + say('{"a":'))
    while not edit.finished:
        edit = stopped.feed(say(text))
        chunks += 1
    assert chunks < 300
    last, end, usage, done = edit.data.split(b"\n\n")[:4]
    assert last + b"\n\n" == say(text)
    assert end + b"\n\n" == ends(reason)
    assert json.loads(usage[6:])["usage"] == {
        "prompt_tokens": 7,
        "total_tokens": 8 + chunks,
        "completion_tokens": 1 + chunks,
    }
    assert done + b"\n\n" == DONE


def test_what_comes_first_counts(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=EarlyStop(complete_json=True, stop=("END",)))
    assert stopped.feed(say("[1] END")).data == say("[1]") + ends("stop") + DONE


def test_a_tasks_words_for_it() -> None:
    assert EarlyStop.on(()) == EarlyStop()
    assert not EarlyStop.on(())
    assert EarlyStop.on(("complete_json", "whitespace"), ("END",)) == EarlyStop(
        complete_json=True, whitespace=True, stop=("END",)
    )
    assert EarlyStop.on(("repetition",)) == EarlyStop(repetition=True)


# Several choices.


def test_the_stream_ends_with_its_last_choice(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=JSON, choices=2)
    edits = fed(
        stopped,
        say("[1"),
        say("[2", 1),
        say("]"),
        say(" more"),
        say(", 3", 1),
        say("", finish="length"),
        say("]", 1),
    )
    assert [edit.data for edit in edits] == [
        say("[1"),
        say("[2", 1),
        say("]") + ends("stop"),
        b"",
        say(", 3", 1),
        b"",
        say("]", 1) + ends("stop", 1) + DONE,
    ]
    assert [edit.finished for edit in edits] == [False] * 6 + [True]
    assert stopped.delivered_tokens == 5


def test_where_the_engine_ends_the_last_choice_it_ends_the_stream(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=JSON, choices=2)
    usage = event(usage={"prompt_tokens": 3, "completion_tokens": 9})
    last = say("x", 1, finish="stop")
    edits = fed(stopped, say("[1]"), say("more"), last, usage, DONE)
    assert [edit.data for edit in edits] == [
        say("[1]") + ends("stop"),
        b"",
        last,
        usage,
        DONE,
    ]
    assert not edits[-1].finished


def test_one_choice_waits_for_the_other(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=WORDS, choices=2)
    edits = fed(stopped, say("aE"), say("b END", 1), say("ND"))
    assert [edit.data for edit in edits[:2]] == [b"", b""]
    assert edits[2].data == b"".join(
        [say("a"), say("b ", 1), ends("stop", 1, "END"), ends("stop", 0, "END"), DONE]
    )


def test_choices_in_one_chunk(editor: Make) -> None:
    def both(first: str, second: str, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": {"content": first}}]
        choices += [{"index": 1, "delta": {"content": second}}]
        return event(*choices, **more)

    stopped = editor(CHAT, early_stop=JSON, choices=2)
    edits = fed(stopped, both("[1] a", "[2"), both("b", ", 3"), both("c", "]"))
    assert [edit.data for edit in edits] == [
        both("[1]", "[2") + ends("stop"),
        event({"index": 1, "delta": {"content": ", 3"}}),
        event({"index": 1, "delta": {"content": "]"}}) + ends("stop", 1) + DONE,
    ]


def test_a_call_of_a_tool_in_another_choice_leaves_the_end_to_the_engine(editor: Make) -> None:
    stopped = editor(CHAT, early_stop=JSON, choices=2)
    tool = say("", 1, tool_calls=[{"index": 0}])
    edits = fed(stopped, say("[1]"), tool, say("x"), say("[2]", 1), DONE)
    assert [edit.data for edit in edits] == [
        say("[1]") + ends("stop"),
        tool,
        b"",
        say("[2]", 1),
        DONE,
    ]


# Where the engine ends at the same time.


def test_json_that_the_engine_ends_itself(editor: Make) -> None:
    last = say("[1]", finish="stop")
    assert fed(editor(CHAT, early_stop=JSON), last, DONE) == [Edit(last), Edit(DONE)]


@pytest.mark.parametrize(("text", "kept"), [("x END y", "x "), ("END", "")])
def test_a_stop_word_in_the_last_piece(editor: Make, text: str, kept: str) -> None:
    stopped = editor(CHAT, early_stop=WORDS)
    edits = fed(stopped, say(text, finish="length"), DONE)
    written = json.loads(edits[0].data[6:])["choices"][0]
    assert written["delta"]["content"] == kept
    assert (written["finish_reason"], written["stop_reason"]) == ("stop", "END")
    assert edits[1] == Edit(DONE)


# Completions.


def test_a_completion_is_stopped(editor: Make) -> None:
    def text(piece: str) -> bytes:
        return event({"index": 0, "text": piece, "finish_reason": None})

    stopped = editor(COMPLETIONS, early_stop=WORDS)
    edit = stopped.feed(text("a END"))
    first, end, done = edit.data.split(b"\n\n")[:3]
    assert json.loads(first[6:])["choices"] == [{"index": 0, "text": "a ", "finish_reason": None}]
    assert json.loads(end[6:])["choices"] == [
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    ]
    assert (done, edit.finished) == (b"data: [DONE]", True)


def test_a_piece_that_cannot_be_written_anew_is_left_out(editor: Make) -> None:
    """It has a name that is no text, which reading skips."""
    odd = b'data: {"id":"c","choices":[{"delta":{"content":"[1] x"}}],"\xff":1}\n\n'
    assert editor(CHAT, early_stop=JSON).feed(odd) == Edit(ends("stop") + DONE, finished=True)
