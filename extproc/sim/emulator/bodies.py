"""What vLLM 0.32 sends back: errors, and the bodies and events of chat and completions.

Rules this module keeps:

* Pure. Names, order and nulls of the fields are vLLM's, field by field.
* A stream is ``opening`` (with the first token), ``delta`` for each new piece of each sequence, and
  ``closing``; each returns finished events, ready to be written.
* The text is filler: a fixed rotation of words, one word a token, its start given by the call.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from extproc.sim.emulator.requests import Call, Endpoint
from extproc.sim.emulator.schema import INVALID, RefusedError

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-emulated"
DONE = b"data: [DONE]\n\n"

_ENCODER = msgspec.json.Encoder()

CHARACTERS = 4
"""Of a given text, a token."""

_TEXT = (
    "the tide comes in and the gate stands open while water rises slowly over stone and sand "
    "until one keeper looks out counts boats near harbour then turns a wheel so that every "
    "small ship may pass before night falls again"
)
_WORDS = tuple(f" {word}" for word in _TEXT.split())


def filler(seed: int, start: int, end: int) -> str:
    """Return the text of tokens ``start`` to ``end`` (exclusive) of a sequence."""
    count = len(_WORDS)
    return "".join(_WORDS[(seed + position) % count] for position in range(start, end))


def scripted(text: str, seed: int, start: int, end: int) -> str:
    """Return the text of tokens ``start`` to ``end`` of a sequence that begins with a given text."""
    given = text[CHARACTERS * start : CHARACTERS * end]
    length = -(-len(text) // CHARACTERS)
    return given + filler(seed, max(start, length), max(end, length))


def dump(value: object) -> bytes:
    """Write JSON as vLLM does: compact, UTF-8; lone surrogates become question marks."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


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
        calls_tool: a chat choice's text is the arguments of a tool call.
    """

    id: str
    created: int
    model: str
    call: Call
    calls_tool: bool = False


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

    def _continuous_details(self) -> dict[str, object]:
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

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self._named: set[int] = set()
        """Choices whose tool is known."""

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
            "delta": self._called(index, text) if self.head.calls_tool else {"content": text},
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        return self._delta_chunk(choice, tokens, last=finish_reason is not None)

    def _called(self, index: int, text: str) -> dict[str, Any]:
        """Return more of a tool call's arguments; what comes first says which tool."""
        call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
        if index not in self._named:
            self._named.add(index)
            call |= {"id": f"call_{index}", "type": "function"}
            call["function"]["name"] = "lookup"
        return {"tool_calls": [call]}

    def _continuous_details(self) -> dict[str, object]:
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
