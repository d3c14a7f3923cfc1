"""The streams of chat and completions: chunks, each with what is new of one choice, then ``[DONE]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from extproc.openai.early_stop import Stop
from extproc.openai.endpoints import Endpoint
from extproc.openai.lax import ABSENT
from extproc.openai.sse import DONE, chunk, dump
from extproc.openai.streams.dialect import Delta, Dialect, Object
from extproc.openai.streams.editor import Asked, Ending


class _Message(msgspec.Struct, gc=False):
    """What is new of a chat choice; models think under either name."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    id: Raw = ABSENT
    object: Raw = ABSENT
    created: Raw = ABSENT
    model: Raw = ABSENT
    choices: list[_Choice] | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_any = msgspec.json.Decoder().decode
_NOTHING = frozenset((b"", b"null", b"[]"))


class ChunkDialect(Dialect):
    """Chunks of chat or of completions."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._top: Object = {}
        """What all chunks of the stream have in common."""
        self._seen: set[int] = set()
        self._spoken: set[int] = set()
        """Choices that have said something that stays before a message."""
        self._ended: set[int] = set()
        self._told = False
        """The client has the chunk with the usage."""

    def read(self, data: bytes) -> Sequence[Delta]:
        """See `Dialect`."""
        self.only_usage = False
        if data == b"[DONE]":
            self.done = True
            return ()
        try:
            read = _decode(data)
            if not self.begun and read.id:
                self._begin(read)
        except (msgspec.DecodeError, RecursionError):
            return self._unreadable(data)
        if read.usage:
            self._meter.read(read.usage)
        if read.choices:
            return [self._read_choice(choice) for choice in read.choices]
        if read.error:
            self.finish = "error"
            self.sealed = True
        elif read.choices is not None and bytes(read.usage) not in _NOTHING:
            self.only_usage = self._told = True
        return ()

    def _begin(self, read: _Chunk) -> None:
        for name in ("id", "object", "created", "model"):
            if raw := getattr(read, name):
                self._top[name] = _decode_any(raw)
        self.begun = True

    def _read_choice(self, choice: _Choice) -> Delta:
        index, message = choice.index, choice.delta
        text = (choice.text if message is None else message.content) or ""
        ends = choice.finish_reason is not None
        if index in self._ended:
            return Delta(index, text, ends)
        self._seen.add(index)
        if text:
            self._spoken.add(index)
            self._deltas += 1
        elif message is not None and (
            message.reasoning_content or message.reasoning or message.refusal
        ):
            self._deltas += 1
        if message is not None and (message.tool_calls or message.function_call):
            self._read_tools(message)
        if ends:
            self.finish = choice.finish_reason
            self._ended.add(index)
        return Delta(index, text, ends)

    def _read_tools(self, message: _Message) -> None:
        if not {bytes(message.tool_calls), bytes(message.function_call)} <= _NOTHING:
            self._deltas += 1
            self.sealed = True

    def rewritten(self, data: bytes, delta: Delta, text: str | None, stop: Stop) -> bytes:
        """See `Dialect`."""
        tree: Object = _decode_any(data)
        choices: list[Object] = tree["choices"]
        place = next(
            place
            for place, choice in enumerate(choices)
            if choice.get("index", 0) == delta.key and _text(choice) == delta.text
        )
        if text is None:
            del choices[place]
            return dump(tree) if choices else b""
        choice = choices[place]
        if choice.get("delta") is None:
            choice["text"] = text
        else:
            choice["delta"]["content"] = text
        if choice.get("finish_reason") is not None:
            choice |= _finish(stop)
        return dump(tree)

    def framed(self, data: bytes) -> bytes:
        """See `Dialect`."""
        return b"data: %s\n\n" % data

    def stop(self, key: int, stop: Stop) -> bytes:
        """See `Dialect`."""
        self._ended.add(key)
        finish = _finish(stop)
        self.finish = finish["finish_reason"]
        return self._chunk(key, "", **finish)

    @property
    def all_ended(self) -> bool:
        """See `Dialect`."""
        return len(self._ended) >= self.asked.choices

    def closing(self) -> bytes:
        """See `Dialect`."""
        self.done = True
        if self._told or not self.asked.include_usage:
            return DONE
        prompt, completion = self._counted()
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        return chunk({**self._top, "choices": [], "usage": usage}) + DONE

    def end(self, ending: Ending) -> bytes:
        """See `Dialect`."""
        written: list[bytes] = []
        note = {} if ending.note is None else {"tidegate": ending.note}
        for index in sorted((self._seen or {0}) - self._ended):
            if ending.message:
                text = ending.message
                if index in self._spoken:
                    text = "\n\n" + text
                written.append(self._chunk(index, text, role=index not in self._seen))
            written.append(self._chunk(index, "", finish_reason=ending.finish_reason, top=note))
            self.finish = ending.finish_reason
        return b"".join(written) + self.closing()

    def _chunk(
        self,
        index: int,
        text: str,
        *,
        role: bool = False,
        top: Object | None = None,
        **more: Any,
    ) -> bytes:
        choice: Object = {"index": index}
        if self.asked.endpoint is Endpoint.CHAT:
            choice["delta"] = {"role": "assistant"} if role else {}
            if text:
                choice["delta"]["content"] = text
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": None, **more}
        return chunk({**self._top, "choices": [choice], **(top or {})})


def _finish(stop: Stop) -> Object:
    reason = "length" if stop.cause.runaway else "stop"
    return {"finish_reason": reason, "stop_reason": stop.word}


def _text(choice: Object) -> str:
    delta = choice.get("delta")
    text: str | None = choice.get("text") if delta is None else delta.get("content")
    return text or ""
