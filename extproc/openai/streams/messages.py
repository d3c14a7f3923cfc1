"""The streams of messages, Anthropic's shape: named events, blocks that open and close in turn."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from extproc.openai.early_stop import Cause, Stop
from extproc.openai.lax import ABSENT
from extproc.openai.sse import dump, named
from extproc.openai.streams.dialect import Delta, Dialect, Object
from extproc.openai.streams.editor import Asked, Ending


class _Message(msgspec.Struct, gc=False):
    usage: Raw = ABSENT


class _Block(msgspec.Struct, gc=False):
    type: str = ""


class _Delta(msgspec.Struct, gc=False):
    """What is new of a block, or at the end of the message."""

    type: str = ""
    text: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    message: _Message | None = None
    index: int = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Raw = ABSENT


_decode = msgspec.json.Decoder(_Event).decode
_decode_any = msgspec.json.Decoder().decode
_HARMLESS = frozenset(("text", "thinking", "redacted_thinking"))
"""Kinds of blocks that are no part of a tool call."""


class MessagesDialect(Dialect):
    """Events of one message."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._next = 0
        """The index of the next block."""
        self._open: str | None = None
        """The kind of the block that is open."""
        self._spoken = False
        """The open block has text."""
        self._stopped: Stop | None = None

    def read(self, data: bytes) -> Sequence[Delta]:
        """See `Dialect`."""
        try:
            event = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            return self._unreadable(data)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                return self._read_delta(event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                self._open, self._spoken = event.content_block.type, False
                self._next = event.index + 1
                self.sealed = self.sealed or self._open not in _HARMLESS
            case "content_block_stop":
                self._open = None
                return (Delta(event.index, "", ends=True),)
            case "message_start" if event.message is not None:
                self.begun = True
                self._meter.read(event.message.usage)
            case "message_delta":
                self._meter.read(event.usage)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self.finish = event.delta.stop_reason
            case "message_stop":
                self.done = True
            case "error":
                self.finish = "error"
                self.sealed = True
        return ()

    def _read_delta(self, index: int, delta: _Delta) -> Sequence[Delta]:
        self._deltas += 1
        if not delta.text:
            return ()
        self._spoken = True
        return (Delta(index, delta.text, ends=False),)

    def rewritten(self, data: bytes, delta: Delta, text: str | None, stop: Stop) -> bytes:
        """See `Dialect`."""
        if text is None:
            return b""
        tree: Object = _decode_any(data)
        tree["delta"]["text"] = text
        return dump(tree)

    def framed(self, data: bytes) -> bytes:
        """See `Dialect`."""
        return b"event: content_block_delta\ndata: %s\n\n" % data

    def stop(self, key: int, stop: Stop) -> bytes:
        """See `Dialect`."""
        self._stopped = stop
        if stop.cause is Cause.STOP_WORD:
            self.finish = "stop_sequence"
        else:
            self.finish = "max_tokens" if stop.cause.runaway else "end_turn"
        return self._block_stop()

    @property
    def all_ended(self) -> bool:
        """See `Dialect`."""
        return self._stopped is not None

    def closing(self) -> bytes:
        """See `Dialect`."""
        self.done = True
        prompt, completion = self._counted()
        word = self._stopped.word if self._stopped else None
        delta = {"stop_reason": self.finish, "stop_sequence": word}
        usage = {"input_tokens": prompt, "output_tokens": completion}
        return named("message_delta", {"delta": delta, "usage": usage}) + named("message_stop", {})

    def end(self, ending: Ending) -> bytes:
        """See `Dialect`."""
        if self.finish is not None:  # The engine is about to stop.
            self.done = True
            return named("message_stop", {})
        written: list[bytes] = []
        if ending.message:
            text = ending.message
            if self._open == "text":
                text = "\n\n" + text if self._spoken else text
            else:
                written.append(self._block_stop())
                written.append(self._block_start())
            delta = {"type": "text_delta", "text": text}
            written.append(named("content_block_delta", {"index": self._next - 1, "delta": delta}))
        written.append(self._block_stop())
        self.finish = ending.finish_reason
        return b"".join(written) + self.closing()

    def _block_start(self) -> bytes:
        index = self._next
        self._next, self._open = index + 1, "text"
        block = {"type": "text", "text": ""}
        return named("content_block_start", {"index": index, "content_block": block})

    def _block_stop(self) -> bytes:
        """Close the block that is open, if one is."""
        if self._open is None:
            return b""
        self._open = None
        return named("content_block_stop", {"index": self._next - 1})
