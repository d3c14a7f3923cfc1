"""Answers in the engine's stead, each in the shape that the endpoint's clients expect.

Rules:
- The body's ``stream`` decides between JSON and SSE, never the ``accept`` header: JSON to a
  streaming client is an empty answer, SSE to the other raises.
- A fallback is a complete, ordinary answer with zero usage, recognised by its id's prefix first.
- A client that waits for JSON or a tool call is not given plain text, which breaks it in strange
  ways: it gets a 429 that it must not retry blindly, or the refusal form.
- Nothing here looks like an error inside of a 200, and no reply says ``pause_turn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from extproc.openai.endpoints import Endpoint
from extproc.openai.sse import DONE, SSE, chunk, dump, named

JSON = "application/json"
SHORTEST_RETRY, LONGEST_RETRY = 1, 60
"""Seconds; outside of these, clients come back at once or at their own pace."""

_Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP response. ``headers`` are in lower case and hold no ``content-length``."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Shed:
    """What every shape is filled with."""

    ident: str
    created: int
    model: str
    message: str
    finish_reason: str
    note: Mapping[str, str]
    include_usage: bool
    refusal: bool


class Addressee(Protocol):
    """What a reply must know of the call that it answers; see `extproc.openai.calls.Call`."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it came in."""
        ...

    @property
    def model(self) -> str:
        """What it asked for."""
        ...

    @property
    def stream(self) -> bool:
        """It waits for a stream of events."""
        ...

    @property
    def include_usage(self) -> bool:
        """And wants that to end in a chunk with the usage."""
        ...

    @property
    def structured(self) -> bool:
        """It waits for JSON, a tool call or a grammar: plain text would break it."""
        ...


def fallback(
    call: Addressee,
    *,
    ident: str,
    created: int,
    message: str,
    finish_reason: str,
    reason: str,
    ticket: str | None,
    retry_after: int,
    refusal: bool = False,
) -> Reply:
    """Return the friendly answer to a shed call, or an error where no text would be understood.

    ``ident``: unique for each reply; its prefix is added here. ``created``: Unix time, seconds.
    ``retry_after``: seconds, kept within 1 and 60. ``refusal``: answer structured calls with a
    200 in the refusal form instead of a 429.
    """
    if call.endpoint not in _SHAPES:
        return error(
            call.endpoint,
            status=503,
            message=message,
            type="overloaded_error",
            code=reason,
            retry_after=retry_after,
        )
    if call.structured and not refusal:
        return error(
            call.endpoint,
            status=429,
            message=message,
            type="rate_limit_error",
            code=reason,
            retry_after=retry_after,
            retry=False,
        )
    shed = _Shed(
        ident=ident,
        created=created,
        model=call.model,
        message=message,
        finish_reason=finish_reason,
        note={"reason": reason} if ticket is None else {"reason": reason, "ticket": ticket},
        include_usage=call.include_usage,
        refusal=refusal and call.structured,
    )
    whole, stream = _SHAPES[call.endpoint]
    body, content_type = (stream(shed), SSE) if call.stream else (dump(whole(shed)), JSON)
    return Reply(200, (("content-type", content_type), _retry_after(retry_after)), body)


def error(
    endpoint: Endpoint,
    *,
    status: int,
    message: str,
    type: str,  # noqa: A002 - the wire's own name
    code: str | int | None = None,
    param: str | None = None,
    retry_after: int | None = None,
    retry: bool = True,
) -> Reply:
    """Return an error in the endpoint's own shape: JSON with a status, to streaming clients too.

    ``retry_after``: seconds, kept within 1 and 60. ``retry=False`` tells the SDKs to give up.
    """
    details: _Object = {"message": message, "type": type, "param": param, "code": code}
    body: _Object = {"error": details}
    if endpoint is Endpoint.MESSAGES:
        body = {"type": "error", "error": {"type": type, "message": message}}
    headers = [("content-type", JSON)]
    if retry_after is not None:
        headers.append(_retry_after(retry_after))
    if not retry:
        headers.append(("x-should-retry", "false"))
    return Reply(status, tuple(headers), dump(body))


def _retry_after(seconds: int) -> tuple[str, str]:
    return "retry-after", str(min(max(seconds, SHORTEST_RETRY), LONGEST_RETRY))


# Chat.


def _chat(shed: _Shed) -> _Object:
    message = {"role": "assistant", "content": shed.message}
    if shed.refusal:
        message["refusal"] = shed.message
    choice = {"index": 0, "message": message, "finish_reason": shed.finish_reason}
    return {
        **_chat_head(shed, "chat.completion"),
        "choices": [choice],
        "usage": _USAGE,
        "tidegate": shed.note,
    }


def _chat_stream(shed: _Shed) -> bytes:
    head = _chat_head(shed, "chat.completion.chunk")
    text = {"content": shed.message}
    if shed.refusal:
        text["refusal"] = shed.message

    def choice(delta: Mapping[str, str], finish_reason: str | None) -> _Object:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    chunks = [
        choice({"role": "assistant", "content": ""}, None),
        choice(text, None),
        {**choice({}, shed.finish_reason), "tidegate": shed.note},
    ]
    if shed.include_usage:
        chunks.append({**head, "choices": [], "usage": _USAGE})
    return _chunks(chunks)


def _chat_head(shed: _Shed, kind: str) -> _Object:
    ident = f"chatcmpl-promo-shedded-{shed.ident}"
    return {"id": ident, "object": kind, "created": shed.created, "model": shed.model}


# Completions.


def _completion(shed: _Shed) -> _Object:
    return {
        **_completion_chunk(shed, shed.message, shed.finish_reason),
        "usage": _USAGE,
        "tidegate": shed.note,
    }


def _completion_stream(shed: _Shed) -> bytes:
    chunks = [
        _completion_chunk(shed, shed.message, None),
        {**_completion_chunk(shed, "", shed.finish_reason), "tidegate": shed.note},
    ]
    if shed.include_usage:
        chunks.append({**_completion_chunk(shed, "", None), "choices": [], "usage": _USAGE})
    return _chunks(chunks)


def _completion_chunk(shed: _Shed, text: str, finish_reason: str | None) -> _Object:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": f"cmpl-promo-shedded-{shed.ident}",
        "object": "text_completion",
        "created": shed.created,
        "model": shed.model,
        "choices": [choice],
    }


# Responses.


def _response(shed: _Shed) -> _Object:
    """``completed`` even so: clients retry or break on ``incomplete`` and ``failed``."""
    metadata = {"tidegate_reason": shed.note["reason"]}
    if "ticket" in shed.note:
        metadata["ticket"] = shed.note["ticket"]
    return {
        "id": f"resp_promo_shedded_{shed.ident}",
        "object": "response",
        "created_at": shed.created,
        "status": "completed",
        "model": shed.model,
        "output": [_item(shed)],
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": metadata,
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }


def _item(shed: _Shed) -> _Object:
    return {
        "id": f"msg_promo_shedded_{shed.ident}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [_part(shed, shed.message)],
    }


def _part(shed: _Shed, text: str) -> _Object:
    if shed.refusal:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response_stream(shed: _Shed) -> bytes:
    whole, item = _response(shed), _item(shed)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    at_item: _Object = {"output_index": 0}
    at_part: _Object = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    kind, text = ("refusal", "refusal") if shed.refusal else ("output_text", "text")
    logprobs: _Object = {} if shed.refusal else {"logprobs": []}
    events: list[tuple[str, _Object]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        (
            "response.output_item.added",
            {**at_item, "item": {**item, "status": "in_progress", "content": []}},
        ),
        ("response.content_part.added", {**at_part, "part": _part(shed, "")}),
        (f"response.{kind}.delta", {**at_part, "delta": shed.message, **logprobs}),
        (f"response.{kind}.done", {**at_part, text: shed.message, **logprobs}),
        ("response.content_part.done", {**at_part, "part": _part(shed, shed.message)}),
        ("response.output_item.done", {**at_item, "item": item}),
        ("response.completed", {"response": whole}),
    ]
    return _events(
        (name, {"sequence_number": number, **data}) for number, (name, data) in enumerate(events)
    )


# Messages.


def _message(shed: _Shed) -> _Object:
    return {
        "id": f"msg_promo_shedded_{shed.ident}",
        "type": "message",
        "role": "assistant",
        "model": shed.model,
        "content": [{"type": "text", "text": shed.message}],
        "stop_reason": shed.finish_reason,
        "stop_sequence": None,
        "usage": _MESSAGES_USAGE,
    }


def _message_stream(shed: _Shed) -> bytes:
    begun = {**_message(shed), "content": [], "stop_reason": None}
    block: _Object = {"index": 0}
    end = {"stop_reason": shed.finish_reason, "stop_sequence": None}
    return _events(
        (
            ("message_start", {"message": begun}),
            ("content_block_start", {**block, "content_block": {"type": "text", "text": ""}}),
            (
                "content_block_delta",
                {**block, "delta": {"type": "text_delta", "text": shed.message}},
            ),
            ("content_block_stop", block),
            ("message_delta", {"delta": end, "usage": _MESSAGES_USAGE}),
            ("message_stop", {}),
        )
    )


_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_MESSAGES_USAGE = {"input_tokens": 0, "output_tokens": 0}
_SHAPES: Mapping[Endpoint, tuple[Callable[[_Shed], _Object], Callable[[_Shed], bytes]]] = {
    Endpoint.CHAT: (_chat, _chat_stream),
    Endpoint.COMPLETIONS: (_completion, _completion_stream),
    Endpoint.RESPONSES: (_response, _response_stream),
    Endpoint.MESSAGES: (_message, _message_stream),
}


# The wire.


def _chunks(chunks: Iterable[_Object]) -> bytes:
    return b"".join([*map(chunk, chunks), DONE])


def _events(events: Iterable[tuple[str, _Object]]) -> bytes:
    return b"".join(named(name, data) for name, data in events)
