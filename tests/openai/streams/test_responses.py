"""Responses in a stream: read, stopped, cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.streams import Edit, Editor, Ending, Usage, responses

ENDING = Ending("stop", "请稍候", {"reason": "evicted", "ticket": "t1"}, b"whole")
RESPONSES = Endpoint.RESPONSES

Make = Callable[..., Editor]
Feed = Callable[..., tuple[bytes, bool]]


class Numbered:
    """Writes events that are numbered as they come."""

    def __init__(self) -> None:
        self.number = -1

    def __call__(self, kind: str, **data: Any) -> bytes:
        self.number += 1
        tree = {"type": f"response.{kind}", "sequence_number": self.number, **data}
        text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
        return f"event: response.{kind}\ndata: {text}\n\n".encode()

    def begun(self) -> bytes:
        response: Any = {"id": "resp_1", "status": "in_progress", "output": [], "usage": None}
        return self("created", response=response) + self("in_progress", response=response)

    def item(self, kind: str = "message", at: int = 0) -> bytes:
        item = {"id": f"{kind}_{at}", "type": kind, "status": "in_progress"}
        return self("output_item.added", output_index=at, item=item)

    def part(self, kind: str = "output_text", whose: str = "content") -> bytes:
        part = {"type": kind}
        return self(f"{whose}_part.added", output_index=0, content_index=0, part=part)

    def say(self, text: str, kind: str = "output_text", at: int = 0) -> bytes:
        return self(f"{kind}.delta", output_index=at, content_index=0, delta=text)


@pytest.fixture
def send() -> Numbered:
    return Numbered()


def read(edit: Edit | None) -> list[tuple[str, Any]]:
    """The events of an edit, their numbers checked to go up by one."""
    assert edit is not None
    found: list[tuple[str, Any]] = []
    numbers: list[int] = []
    for text in edit.data.decode().split("\n\n")[:-1]:
        name, _, data = text.partition("\n")
        tree = json.loads(data.removeprefix("data: "))
        assert name == f"event: {tree['type']}"
        numbers.append(tree.pop("sequence_number"))
        found.append((tree.pop("type").removeprefix("response."), tree))
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return found


def test_a_stream_passes_as_it_is(editor: Make, edited: Feed, send: Numbered) -> None:
    usage = {"input_tokens": 15, "output_tokens": 3}
    stream = [
        send.begun(),
        send.item("reasoning"),
        send("reasoning_part.added", part={"type": "reasoning_text"}),
        send.say("hm", "reasoning_text"),
        send("reasoning_text.done", text="hm"),
        send("reasoning_part.done", part={"type": "reasoning_text", "text": "hm"}),
        send("output_item.done", output_index=0, item={"type": "reasoning"}),
        send.item(at=1),
        send.part(),
        send.say("a", at=1),
        send("output_text.done", output_index=1, text="a"),
        send("content_part.done", part={"type": "output_text", "text": "a"}),
        send("output_item.done", output_index=1, item={"type": "message"}),
        send("completed", response={"status": "completed", "usage": usage}),
    ]
    reading = editor(RESPONSES, early_stop=EarlyStop(True, True, True, ("zz",)))
    assert edited(reading, *stream) == (b"".join(stream), False)
    assert (reading.usage, reading.delivered_tokens) == (Usage(15, 3), 3)
    assert reading.finish == "completed"
    assert reading.cut(ENDING) == Edit(b"", finished=True)


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_usage_of_every_end(editor: Make, send: Numbered, kind: str) -> None:
    reading = editor(RESPONSES)
    usage = {"input_tokens": 15, "output_tokens": 3}
    reading.feed(send.begun() + send(kind, response={"usage": usage}))
    assert (reading.usage, reading.finish) == (Usage(15, 3), kind)


def test_an_evicted_stream_ends_well(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES, prompt_tokens=9)
    passed = send.begun() + send.item() + send.part() + send.say("Once") + send.say(" upon")
    assert evicted.feed(passed) == Edit(passed)
    edit = evicted.cut(ENDING)
    at = {"item_id": "message_0", "output_index": 0, "content_index": 0}
    text = "Once upon\n\n请稍候"
    part = {"type": "output_text", "text": text}
    item = {"id": "message_0", "type": "message", "status": "completed", "content": [part]}
    assert read(edit) == [
        ("output_text.delta", {**at, "delta": "\n\n请稍候", "logprobs": []}),
        ("output_text.done", {**at, "text": text, "logprobs": []}),
        ("content_part.done", {**at, "part": part}),
        ("output_item.done", {"output_index": 0, "item": item}),
        (
            "completed",
            {
                "response": {
                    "id": "resp_1",
                    "status": "completed",
                    "output": [item],
                    "usage": {
                        "input_tokens": 9,
                        "input_tokens_details": {"cached_tokens": 0},
                        "output_tokens": 2,
                        "output_tokens_details": {"reasoning_tokens": 0},
                        "total_tokens": 11,
                    },
                    "incomplete_details": None,
                    "metadata": {"tidegate_reason": "evicted", "ticket": "t1"},
                }
            },
        ),
    ]
    assert edit is not None
    assert f'"sequence_number":{send.number + 1},'.encode() in edit.data
    assert (edit.finished, evicted.finish) == (True, "completed")


def test_before_the_first_text_a_message_is_opened(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    evicted.feed(send.begun())
    events = read(evicted.cut(ENDING))
    assert [kind for kind, _ in events] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    (item,) = events[-1][1]["response"]["output"]
    assert item == {
        "id": "msg_tidegate_0",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "请稍候", "annotations": [], "logprobs": []}],
    }


def test_a_thought_is_closed_and_a_message_follows(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    evicted.feed(send.begun() + send.item("reasoning") + send.part("reasoning_text", "reasoning"))
    evicted.feed(send.say("hm", "reasoning_text"))
    events = read(evicted.cut(ENDING))
    assert [kind for kind, _ in events][:5] == [
        "reasoning_text.done",
        "reasoning_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
    ]
    thought, message = events[-1][1]["response"]["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "请稍候"
    assert events[3][1]["output_index"] == 1


def test_after_the_end_of_a_text_another_part_says_it(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    evicted.feed(send.begun() + send.item() + send.part() + send.say("a"))
    evicted.feed(send("output_text.done", output_index=0, content_index=0, text="a"))
    events = read(evicted.cut(ENDING))
    assert [kind for kind, _ in events][:3] == [
        "content_part.done",
        "content_part.added",
        "output_text.delta",
    ]
    assert events[2][1]["content_index"] == 1
    (item,) = events[-1][1]["response"]["output"]
    assert [part["text"] for part in item["content"]] == ["a", "请稍候"]


def test_after_a_refusal_another_part_says_it(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    evicted.feed(send.begun() + send.item() + send.part("refusal") + send.say("no", "refusal"))
    events = read(evicted.cut(ENDING))
    assert events[0] == (
        "refusal.done",
        {"item_id": "message_0", "output_index": 0, "content_index": 0, "refusal": "no"},
    )
    assert events[1][1]["part"] == {"type": "refusal", "refusal": "no"}


def test_between_two_parts_and_two_items(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    done = {"type": "output_text", "text": "a"}
    evicted.feed(send.begun() + send.item() + send.part() + send.say("a"))
    evicted.feed(send("content_part.done", part=done))
    events = read(evicted.cut(Ending("stop")))
    (item,) = events[-1][1]["response"]["output"]
    assert item["content"] == [done]
    assert [kind for kind, _ in events] == ["output_item.done", "completed"]


def test_between_two_items(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    done = {"type": "message", "content": []}
    evicted.feed(send.begun() + send.item() + send("output_item.done", output_index=0, item=done))
    events = read(evicted.cut(ENDING))
    assert (events[0][0], events[0][1]["output_index"]) == ("output_item.added", 1)
    assert events[-1][1]["response"]["output"][0] == done
    merged = editor(RESPONSES)
    merged.feed(send.begun())
    assert [kind for kind, _ in read(merged.cut(Ending("stop")))] == ["completed"]


def test_what_was_noted_by_the_client_stays(editor: Make, send: Numbered) -> None:
    evicted = editor(RESPONSES)
    evicted.feed(send("created", response={"metadata": {"mine": "1"}}))
    response = read(evicted.cut(ENDING))[-1][1]["response"]
    assert response["metadata"] == {"mine": "1", "tidegate_reason": "evicted", "ticket": "t1"}


@pytest.mark.parametrize(
    "passed",
    [
        lambda send: send.item("function_call"),
        lambda send: send.item() + send.say(["no text"]),
        lambda send: send("output_item.added", item=7),
        lambda send: b'data: {"type":"error","message":"gone"}\n\n',
    ],
    ids=["tool", "no text", "no item", "error"],
)
def test_what_cannot_end_well_is_not_ended(
    editor: Make, send: Numbered, passed: Callable[[Numbered], bytes]
) -> None:
    running = editor(RESPONSES, early_stop=EarlyStop(complete_json=True))
    running.feed(send.begun())
    data = passed(send)
    assert running.feed(data) == Edit(data)
    assert not running.cuttable
    assert running.cut(ENDING) is None
    assert not running.feed(send.say("[1]")).finished


def test_more_than_is_kept_is_not_ended(
    editor: Make, send: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "LONGEST_KEPT", 1000)
    running = editor(RESPONSES)
    running.feed(send.begun() + send.item() + send.part() + send.say("x" * 200))
    assert running.cuttable
    running.feed(send.say("x" * 700))
    assert running.cut(ENDING) is None


def test_before_the_first_event_the_fallback_is_the_answer(editor: Make) -> None:
    assert editor(RESPONSES).cut(ENDING) == Edit(b"whole", finished=True)


def test_complete_json_ends_the_response(editor: Make, send: Numbered) -> None:
    stopped = editor(RESPONSES, early_stop=EarlyStop(complete_json=True))
    stopped.feed(send.begun() + send.item() + send.part())
    stopped.feed(send.say("[1, "))
    edit = stopped.feed(send.say("2] and") + send.say("more"))
    assert edit.finished
    events = read(edit)
    assert [kind for kind, _ in events] == [
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0][1]["delta"] == "2]"
    response = events[-1][1]["response"]
    assert response["output"][0]["content"][0]["text"] == "[1, 2]"
    assert (response["status"], "metadata" in response) == ("completed", False)
    assert stopped.finish == "completed"


def test_a_stop_word_ends_the_response(editor: Make, send: Numbered) -> None:
    stopped = editor(RESPONSES, early_stop=EarlyStop(stop=("END",)))
    stopped.feed(send.begun() + send.item() + send.part())
    assert stopped.feed(send.say("a ")).data
    assert stopped.feed(send.say("E") + send.say("N")) == Edit(b"")
    edit = stopped.feed(send.say("D"))
    kind, data = read(edit)[0]
    assert (kind, data["text"]) == ("output_text.done", "a ")
    assert b'"sequence_number":5,' in edit.data  # what was left out has no numbers


def test_a_runaway_ends_as_at_its_longest(editor: Make, send: Numbered) -> None:
    stopped = editor(RESPONSES, early_stop=EarlyStop(whitespace=True))
    stopped.feed(send.begun() + send.item() + send.part())
    response = read(stopped.feed(send.say(" " * 600)))[-1][1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert stopped.finish == "incomplete"
