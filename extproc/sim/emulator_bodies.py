"""What vLLM 0.32 sends back: reply bodies and server-sent events of the four endpoints, and errors.

Rules kept here:

- Pure. Names, order and nulls of the fields are vLLM's, field by field.
- A stream is ``opening`` (with the first token), ``delta`` for each new piece of each sequence, and
  ``closing``; each returns finished events, ready to be written.
- The text is filler: a fixed rotation of words, one word a token, its start given by the call.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.sim.emulator_requests import INVALID, Call, Endpoint, RefusedError

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-emulated"
DONE = b"data: [DONE]\n\n"

_WORDS = tuple(
    f" {word}"
    for word in (
        "the tide comes in and the gate stands open while water rises slowly over stone and sand "
        "until one keeper looks out counts boats near harbour then turns a wheel so that every "
        "small ship may pass before night falls again"
    ).split()
)


def filler(seed: int, start: int, end: int) -> str:
    """Return the text of tokens ``start`` to ``end`` (exclusive) of a sequence."""
    count = len(_WORDS)
    return "".join(_WORDS[(seed + position) % count] for position in range(start, end))


def dump(value: object) -> bytes:
    """Write JSON as vLLM does: compact, UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def error_body(error: RefusedError, endpoint: Endpoint | None) -> bytes:
    """Return an error in the endpoint's shape; schema errors have OpenAI's on every endpoint."""
    if endpoint is Endpoint.MESSAGES and error.kind != INVALID:
        return dump({"type": "error", "error": {"type": error.kind, "message": error.message}})
    shown = {"message": error.message, "type": error.kind, "param": error.param}
    return dump({"error": {**shown, "code": error.status}})


@dataclass(frozen=True, slots=True)
class Head:
    """What all bodies of one reply have in common.

    Attributes:
        id: the random part of the reply's id, or what the caller sent as ``x-request-id``.
        created: seconds since the epoch.
        model: name of the model.
        call: what was asked.
    """

    id: str
    created: int
    model: str
    call: Call


@dataclass(frozen=True, slots=True)
class Output:
    """One finished sequence.

    Attributes:
        text: what was generated.
        tokens: its length.
        finish_reason: ``stop`` or ``length``.
    """

    text: str
    tokens: int
    finish_reason: str


class Bodies(ABC):
    """The bodies of one reply."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.prompt_tokens = head.call.prompt_tokens

    @abstractmethod
    def whole(self, outputs: Sequence[Output]) -> bytes:
        """Return the body of a reply that is not streamed."""

    @abstractmethod
    def opening(self) -> bytes:
        """Return the events before the first text."""

    @abstractmethod
    def delta(self, index: int, text: str, tokens: int, finish_reason: str | None) -> bytes:
        """Return the event for new text of a sequence.

        Args:
            index: the sequence.
            text: what is new.
            tokens: tokens of the sequence so far.
            finish_reason: why it ended, where this is its last text.
        """

    @abstractmethod
    def closing(self, outputs: Sequence[Output]) -> bytes:
        """Return the events after the last text."""

    def _usage(self, completion_tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }


_USAGE_DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": None}


class _OpenAIBodies(Bodies):
    """What chat and completions have in common."""

    prefix: str
    chunk_object: str

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self.id = f"{self.prefix}-{head.id}"
        self._unfinished = len(head.call.prompts) * head.call.n

    def _reply(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        }

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        return b"data: " + dump(self._reply(self.chunk_object, choices) | more) + b"\n\n"

    def _delta_chunk(self, choice: dict[str, Any], tokens: int, *, last: bool) -> bytes:
        more: dict[str, object] = {}
        call = self.head.call
        if call.continuous_usage:
            more["usage"] = self._usage(tokens) | self._continuous_details()
        if last:
            self._unfinished -= 1
            if self._unfinished == 0 and not call.include_usage:
                more["system_fingerprint"] = FINGERPRINT
        return self._chunk([choice], **more)

    def _continuous_details(self) -> Mapping[str, object]:
        return {}

    def closing(self, outputs: Sequence[Output]) -> bytes:
        if not self.head.call.include_usage:
            return DONE
        usage = self._usage(sum(output.tokens for output in outputs))
        return self._chunk([], usage=usage, system_fingerprint=FINGERPRINT) + DONE


class ChatBodies(_OpenAIBodies):
    """``/v1/chat/completions``."""

    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def whole(self, outputs: Sequence[Output]) -> bytes:
        """Return the body of a reply that is not streamed."""
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": output.text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": output.finish_reason,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, output in enumerate(outputs)
        ]
        return dump(
            self._reply("chat.completion", choices)
            | {
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self._usage(sum(output.tokens for output in outputs)) | _USAGE_DETAILS,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def opening(self) -> bytes:
        """Return the role of every choice."""
        more: dict[str, object] = {}
        if self.head.call.continuous_usage:
            more["usage"] = self._usage(0) | self._continuous_details()
        more |= {"prompt_token_ids": None, "prompt_text": None}
        return b"".join(
            self._chunk(
                [
                    {
                        "index": index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                **more,
            )
            for index in range(self._unfinished)
        )

    def delta(self, index: int, text: str, tokens: int, finish_reason: str | None) -> bytes:
        """Return the chunk for new text of a choice."""
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        return self._delta_chunk(choice, tokens, last=finish_reason is not None)

    def _continuous_details(self) -> Mapping[str, object]:
        return {"completion_tokens_details": None}


class CompletionsBodies(_OpenAIBodies):
    """``/v1/completions``."""

    prefix = "cmpl"
    chunk_object = "text_completion"

    def whole(self, outputs: Sequence[Output]) -> bytes:
        """Return the body of a reply that is not streamed."""
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "text": output.text,
                "logprobs": None,
                "finish_reason": output.finish_reason,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for index, output in enumerate(outputs)
        ]
        return dump(
            self._reply("text_completion", choices)
            | {
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self._usage(sum(output.tokens for output in outputs)) | _USAGE_DETAILS,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def opening(self) -> bytes:
        """Return nothing: a completion's stream starts with text."""
        return b""

    def delta(self, index: int, text: str, tokens: int, finish_reason: str | None) -> bytes:
        """Return the chunk for new text of a choice."""
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        return self._delta_chunk(choice, tokens, last=finish_reason is not None)


def _event(kind: str, data: Mapping[str, object]) -> bytes:
    return f"event: {kind}\ndata: ".encode() + dump(data) + b"\n\n"


class MessagesBodies(Bodies):
    """``/v1/messages``, Anthropic's shape."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self.id = f"chatcmpl-{head.id}"

    def whole(self, outputs: Sequence[Output]) -> bytes:
        """Return the body of a reply that is not streamed."""
        (output,) = outputs
        return dump(
            {
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": output.text}],
                "model": self.head.model,
                "stop_reason": _STOP_REASONS[output.finish_reason],
                "usage": self._anthropic_usage(output.tokens),
            }
        )

    def opening(self) -> bytes:
        """Return the start of the message and of its one block."""
        message = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.head.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._anthropic_usage(0),
        }
        block = {"type": "text", "text": ""}
        return _event("message_start", {"type": "message_start", "message": message}) + _event(
            "content_block_start",
            {"type": "content_block_start", "content_block": block, "index": 0},
        )

    def delta(self, index: int, text: str, tokens: int, finish_reason: str | None) -> bytes:
        """Return the event for new text."""
        del tokens, finish_reason
        delta = {"type": "text_delta", "text": text}
        return _event(
            "content_block_delta",
            {"type": "content_block_delta", "delta": delta, "index": index},
        )

    def closing(self, outputs: Sequence[Output]) -> bytes:
        """Return the end of the block and of the message."""
        (output,) = outputs
        delta = {"stop_reason": _STOP_REASONS[output.finish_reason], "stop_sequence": None}
        usage = self._anthropic_usage(output.tokens)
        return (
            _event("content_block_stop", {"type": "content_block_stop", "index": 0})
            + _event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
            + _event("message_stop", {"type": "message_stop"})
        )

    def _anthropic_usage(self, output_tokens: int) -> dict[str, int]:
        return {"input_tokens": self.prompt_tokens, "output_tokens": output_tokens}


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class ResponsesBodies(Bodies):
    """``/v1/responses``."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self.id = f"resp_{head.id}"
        self.message_id = f"msg_{head.id}"
        self._sequence_number = 0

    def whole(self, outputs: Sequence[Output]) -> bytes:
        """Return the body of a reply that is not streamed."""
        return dump(self._response(outputs[0]))

    def opening(self) -> bytes:
        """Return the events from the response's creation to the empty text part."""
        item = self._item(None)
        return (
            self._numbered("response.created", response=self._response(None))
            + self._numbered("response.in_progress", response=self._response(None))
            + self._numbered("response.output_item.added", item=item, output_index=0)
            + self._numbered(
                "response.content_part.added",
                content_index=0,
                item_id=self.message_id,
                output_index=0,
                part=_part("", []),
            )
        )

    def delta(self, index: int, text: str, tokens: int, finish_reason: str | None) -> bytes:
        """Return the event for new text."""
        del tokens, finish_reason
        return self._numbered(
            "response.output_text.delta",
            content_index=0,
            delta=text,
            item_id=self.message_id,
            logprobs=[],
            output_index=index,
        )

    def closing(self, outputs: Sequence[Output]) -> bytes:
        """Return the ends of text, part, item and response."""
        output = outputs[0]
        place = {"content_index": 0, "item_id": self.message_id}
        return (
            self._numbered(
                "response.output_text.done", **place, logprobs=[], output_index=0, text=output.text
            )
            + self._numbered(
                "response.content_part.done", **place, output_index=0, part=_part(output.text, None)
            )
            + self._numbered("response.output_item.done", item=self._item(output), output_index=0)
            + self._numbered("response.completed", response=self._response(output))
        )

    def _numbered(self, kind: str, **data: object) -> bytes:
        number = self._sequence_number
        self._sequence_number += 1
        # vLLM sorts the fields of these events by name.
        return _event(
            kind, dict(sorted((data | {"sequence_number": number, "type": kind}).items()))
        )

    def _item(self, output: Output | None) -> dict[str, Any]:
        return {
            "id": self.message_id,
            "content": [] if output is None else [_part(output.text, None)],
            "role": "assistant",
            "status": "in_progress" if output is None else "completed",
            "type": "message",
            "phase": None,
        }

    def _response(self, output: Output | None) -> dict[str, Any]:
        """Return the response object; None: it has just begun."""
        cut = output is not None and output.finish_reason == "length"
        status = "in_progress" if output is None else "incomplete" if cut else "completed"
        call = self.head.call
        return {
            "id": self.id,
            "created_at": self.head.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": None,
            "metadata": None,
            "model": self.head.model,
            "object": "response",
            "output": [] if output is None else [self._item(output)],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": call.requested_max_tokens or call.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None if output is None else self._responses_usage(output.tokens),
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _responses_usage(self, output_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": output_tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": self.prompt_tokens + output_tokens,
        }


def _part(text: str, logprobs: list[object] | None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


BODIES: Mapping[Endpoint, type[Bodies]] = {
    Endpoint.CHAT: ChatBodies,
    Endpoint.COMPLETIONS: CompletionsBodies,
    Endpoint.RESPONSES: ResponsesBodies,
    Endpoint.MESSAGES: MessagesBodies,
}
