"""What vLLM 0.32 sends back from the endpoints whose events have names: messages and responses.

The rules are those of ``emulator_bodies``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from extproc.sim.emulator.bodies import Bodies, Head, Output, dump


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
        message: dict[str, object] = {
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
