"""The streams of responses: named, numbered events that build up items, and items of parts.

What has to be said again at the end, the finished items and the text of the open part, is kept, up
to ``LONGEST_KEPT`` bytes; a longer response is not ended by us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from extproc.openai.early_stop import Stop
from extproc.openai.lax import ABSENT, with_headroom
from extproc.openai.sse import dump, named
from extproc.openai.streams.dialect import Delta, Dialect, Object
from extproc.openai.streams.editor import Asked, Ending

LONGEST_KEPT: Final = 1 << 20
"""Bytes."""


class _Typed(msgspec.Struct, gc=False):
    type: str = ""


class _Response(msgspec.Struct, gc=False):
    status: str | None = None
    usage: Raw = ABSENT


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    sequence_number: int = -1
    response: Raw = ABSENT
    output_index: int = 0
    content_index: int = 0
    item: Raw = ABSENT
    part: Raw = ABSENT
    delta: Raw = ABSENT


_decode = msgspec.json.Decoder(_Event).decode
_decode_type = msgspec.json.Decoder(_Typed).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_object = msgspec.json.Decoder(Object).decode

_HARMLESS = frozenset(("message", "reasoning"))
"""Kinds of items that are no part of a tool call."""
_TEXTS = frozenset(("response.refusal.delta", "response.reasoning_text.delta"))
"""What makes a part longer, beside the text of an answer."""


class ResponsesDialect(Dialect):
    """Events of one response."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._response = ABSENT
        self._number = -1
        """Of the last event that the client has."""
        self._items: list[Raw] = []
        """Those that are finished."""
        self._item = ABSENT
        """The one that is open, as it was when it was opened; empty if none is."""
        self._at = 0
        """Its place."""
        self._parts: list[Raw] = []
        """The finished parts of the open item."""
        self._part = ABSENT
        """The part that is open, as it was when it was opened; empty if none is."""
        self._text: list[str] = []
        """The text of the open part."""
        self._told = False
        """The client was told that the open part's text is whole."""
        self._size = 0
        """Bytes that are kept."""
        self._stopped: Stop | None = None
        self._note: Object = {}
        """Told in the metadata."""

    def read(self, data: bytes) -> Sequence[Delta]:
        """See `Dialect`."""
        try:
            event = _decode(data)
            self._number = max(self._number, event.sequence_number)
            if event.type.endswith(".delta"):
                self._deltas += 1
            if event.type == "response.output_text.delta":
                return (Delta(_key(event), self._longer(event), ends=False),)
            return self._read_other(event)
        except (msgspec.DecodeError, RecursionError):
            return self._unreadable(data)

    def _longer(self, event: _Event) -> str:
        text = _decode_text(event.delta)
        self._text.append(text)
        self._count(len(event.delta))
        return text

    def _read_other(self, event: _Event) -> Sequence[Delta]:
        match event.type:
            case kind if kind in _TEXTS:
                self._longer(event)
            case "response.output_text.done":
                self._told = True
                return (Delta(_key(event), "", ends=True),)
            case "response.created" | "response.in_progress" | "response.queued":
                self._response = self._kept(event.response)
                self.begun = True
            case "response.completed" | "response.incomplete" | "response.failed":
                response = _decode_response(event.response)
                self._meter.read(response.usage)
                self.finish = response.status or event.type.removeprefix("response.")
                self.done = True
            case "error":
                self.finish = "error"
                self.sealed = True
            case _:
                self._read_structure(event)
        return ()

    def _read_structure(self, event: _Event) -> None:
        match event.type:
            case "response.output_item.added":
                self._item, self._at, self._parts = self._kept(event.item), event.output_index, []
                if _decode_type(event.item).type not in _HARMLESS:
                    self.sealed = True
            case "response.output_item.done":
                self._items.append(self._kept(event.item))
                self._item, self._at = ABSENT, event.output_index + 1
            case "response.content_part.added" | "response.reasoning_part.added":
                _decode_type(event.part)
                self._part, self._text, self._told = self._kept(event.part), [], False
            case "response.content_part.done" | "response.reasoning_part.done":
                self._parts.append(self._kept(event.part))
                self._part = ABSENT

    def _kept(self, raw: Raw) -> Raw:
        """Return an object that is kept, and is sure to be readable at the end."""
        with_headroom(_decode_object, raw)
        self._count(len(raw))
        return raw

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > LONGEST_KEPT:
            self.sealed = True
            self._items.clear()
            self._text.clear()

    def rewritten(self, data: bytes, delta: Delta, text: str | None, stop: Stop) -> bytes:
        """See `Dialect`."""
        tree = _decode_object(data)
        number: int = tree.get("sequence_number", -1)
        if text is None:
            self._number = min(self._number, number - 1)
            return b""
        self._number = number
        tree["delta"] = text
        return dump(tree)

    def framed(self, data: bytes) -> bytes:
        """See `Dialect`."""
        return b"event: response.output_text.delta\ndata: %s\n\n" % data

    def stop(self, key: int, stop: Stop) -> bytes:
        """See `Dialect`."""
        self._stopped = stop
        self._text = ["".join(self._text)[: stop.at] + stop.closing]
        return self._close_part() + self._close_item()

    @property
    def all_ended(self) -> bool:
        """See `Dialect`."""
        return self._stopped is not None

    def closing(self) -> bytes:
        """See `Dialect`. At its longest, a response is what the engine makes of it: incomplete."""
        runaway = self._stopped is not None and self._stopped.cause.runaway
        self.finish = "incomplete" if runaway else "completed"
        self.done = True
        prompt, completion = self._counted()
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        }
        response = _decode_object(self._response) | {
            "status": self.finish,
            "incomplete_details": {"reason": "max_output_tokens"} if runaway else None,
            "output": [_decode_object(item) for item in self._items],
            "usage": usage,
        }
        if self._note:
            metadata = response.get("metadata")
            response["metadata"] = (metadata if isinstance(metadata, dict) else {}) | self._note
        return self._event("response.completed", response=response)

    def end(self, ending: Ending) -> bytes:
        """See `Dialect`."""
        names = {"reason": "tidegate_reason"}
        self._note = {names.get(name, name): told for name, told in (ending.note or {}).items()}
        written = self._say(ending.message) if ending.message else b""
        written += self._close_part() + self._close_item()
        return written + self.closing()

    # What is written.

    def _say(self, message: str) -> bytes:
        written = b""
        if self._item and _decode_type(self._item).type != "message":
            written += self._close_part() + self._close_item()
        if self._part and (self._told or _decode_type(self._part).type != "output_text"):
            written += self._close_part()
        if not self._item:
            written += self._open_item()
        if not self._part:
            written += self._open_part()
        if self._text:
            message = "\n\n" + message
        self._text.append(message)
        return written + self._event(
            "response.output_text.delta", **self._place(), delta=message, logprobs=[]
        )

    def _open_item(self) -> bytes:
        ident = f"msg_tidegate_{self._at}"
        item: Object = {"id": ident, "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        self._item, self._parts = Raw(dump(item)), []
        return self._event("response.output_item.added", output_index=self._at, item=item)

    def _open_part(self) -> bytes:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._part, self._text, self._told = Raw(dump(part)), [], False
        return self._event("response.content_part.added", **self._place(), part=part)

    def _close_part(self) -> bytes:
        if not self._part:
            return b""
        part = _decode_object(self._part)
        kind: str = part.get("type", "")
        member = "refusal" if kind == "refusal" else "text"
        part[member] = "".join(self._text)
        more: Object = {"logprobs": []} if kind == "output_text" else {}
        place = self._place()
        self._parts.append(Raw(dump(part)))
        self._part = ABSENT
        whose = "reasoning" if kind == "reasoning_text" else "content"
        text = {member: part[member], **more}
        told = b"" if self._told else self._event(f"response.{kind}.done", **place, **text)
        return told + self._event(f"response.{whose}_part.done", **place, part=part)

    def _close_item(self) -> bytes:
        if not self._item:
            return b""
        parts = [_decode_object(part) for part in self._parts]
        item = _decode_object(self._item) | {"status": "completed", "content": parts}
        self._items.append(Raw(dump(item)))
        place, self._at, self._item = self._at, self._at + 1, ABSENT
        return self._event("response.output_item.done", output_index=place, item=item)

    def _place(self) -> Object:
        item = _decode_object(self._item) if self._item else {}
        return {
            "item_id": item.get("id", ""),
            "output_index": self._at,
            "content_index": len(self._parts),
        }

    def _event(self, kind: str, **data: object) -> bytes:
        self._number += 1
        return named(kind, {"sequence_number": self._number, **data})


def _key(event: _Event) -> int:
    return event.output_index << 16 | event.content_index
