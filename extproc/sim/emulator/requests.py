"""What a body sent to one of the emulated endpoints asks for, or the error that vLLM would answer.

Rules this module keeps:

* Pure: bytes in, a ``Call`` or a ``RefusedError`` out, nothing else.
* Only the fields that the emulator uses are checked; all others are ignored, as vLLM ignores
  unknown ones. Its own fields have no effect on ``/v1/messages``, whose schema is Anthropic's.
* There is no tokenizer: four bytes of the rendered prompt are one token. Equal leading text gives
  equal leading tokens, so prefixes are shared as they would be.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from extproc.sim.emulator.schema import (
    Field,
    RefusedError,
    Schema,
    anything,
    array,
    bad_value,
    boolean,
    int64,
    integer,
    mapping,
    missing,
    read_fields,
    read_json,
    string,
)

BYTES_PER_TOKEN = 4
COMPLETIONS_MAX_TOKENS = 16
"""What ``/v1/completions`` generates at most where nothing is said."""
MAX_N = 128
"""Sequences of one prompt at most."""


class Endpoint(StrEnum):
    """The endpoints that generate."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, rendered.

    Attributes:
        text: what the model reads, four bytes a token.
    """

    text: bytes

    @property
    def tokens(self) -> int:
        """Length in tokens, at least 1."""
        return max(1, -(-len(self.text) // BYTES_PER_TOKEN))

    def block_names(self, block_size: int) -> tuple[bytes, ...]:
        """Name the full blocks of the prompt; a name stands for all that precedes its block too."""
        step = block_size * BYTES_PER_TOKEN
        names: list[bytes] = []
        name = b""
        for end in range(step, len(self.text) + 1, step):
            name = blake2b(name + self.text[end - step : end], digest_size=16).digest()
            names.append(name)
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be generated and how it is to be answered.

    Attributes:
        endpoint: where it came in.
        prompts: one, or several for a batch of completions.
        n: sequences for each prompt.
        max_tokens: tokens of each sequence at most.
        min_tokens: tokens of each sequence at least.
        ignore_eos: generate exactly ``max_tokens``.
        requested_max_tokens: the limit as the caller gave it, if so.
        priority: lower is served first.
        stream: answer as server-sent events.
        include_usage: end the stream with the token counts.
        continuous_usage: token counts in every chunk.
        seed: a number made of the prompts, for what is drawn for this call.
    """

    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    requested_max_tokens: int | None
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    seed: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.tokens for prompt in self.prompts)


_STREAM: Schema = {"model": Field(string), "stream": Field(boolean)}
_SAMPLING: Schema = {
    "n": Field(integer),
    "min_tokens": Field(integer, nullable=False),
    "ignore_eos": Field(boolean, nullable=False),
    "priority": Field(int64, nullable=False),
    "stream_options": Field(mapping),
}
_SCHEMAS: Mapping[Endpoint, Schema] = {
    Endpoint.CHAT: {
        "messages": Field(array, required=True, nullable=False),
        "tools": Field(anything),
        "max_tokens": Field(integer),
        "max_completion_tokens": Field(integer),
        **_STREAM,
        **_SAMPLING,
    },
    Endpoint.COMPLETIONS: {
        "prompt": Field(anything),
        "max_tokens": Field(integer),
        **_STREAM,
        **_SAMPLING,
    },
    Endpoint.RESPONSES: {
        "input": Field(anything, required=True, nullable=False),
        "instructions": Field(anything),
        "tools": Field(anything),
        "max_output_tokens": Field(integer),
        "ignore_eos": Field(boolean, nullable=False),
        "priority": Field(int64, nullable=False),
        **_STREAM,
    },
    Endpoint.MESSAGES: {
        **_STREAM,
        "model": Field(string, required=True, nullable=False),
        "messages": Field(array, required=True, nullable=False),
        "system": Field(anything),
        "tools": Field(anything),
        "max_tokens": Field(integer, required=True, nullable=False),
    },
}


def read_call(endpoint: Endpoint, body: bytes, *, model: str, max_model_len: int) -> Call:
    """Read a body.

    Args:
        endpoint: where it came in.
        body: the body as sent, decompressed.
        model: the name of the model that is served.
        max_model_len: tokens of a sequence at most, prompt and output.

    Raises:
        RefusedError: vLLM would answer with this error.
    """
    fields = read_fields(_SCHEMAS[endpoint], body)
    asked_model = fields.get("model")
    if asked_model not in (None, "", model):
        message = f"The model `{asked_model}` does not exist. Valid aliases: {model}."
        raise RefusedError(404, "NotFoundError", message, "model")
    stream = bool(fields.get("stream"))
    options: Mapping[str, Any] = fields.get("stream_options") or {}
    if options and not stream:
        message = "Stream options can only be defined when `stream=True`."
        raise bad_value("stream_options", None, message)
    n: int = fields.get("n", 1)
    if n < 1:
        raise bad_value("n", n, f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise bad_value("n", n, f"n must be at most {MAX_N}, got {n}.")
    prompts = _PROMPTS[endpoint](fields)
    requested = _requested_max_tokens(endpoint, fields)
    longest = max(prompt.tokens for prompt in prompts)
    max_tokens = _max_tokens(requested, longest, max_model_len)
    include_usage = bool(options.get("include_usage"))
    return Call(
        endpoint=endpoint,
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        min_tokens=min(fields.get("min_tokens", 0), max_tokens),
        ignore_eos=fields.get("ignore_eos", False),
        requested_max_tokens=requested,
        priority=fields.get("priority", 0),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        seed=zlib.crc32(b"".join(prompt.text for prompt in prompts)),
    )


def read_tokenize(body: bytes) -> Prompt:
    """Read the prompt or the messages of a body sent to ``/tokenize``.

    Raises:
        RefusedError: it has neither.
    """
    fields = read_json(body)
    if isinstance(fields, dict):
        if isinstance(fields.get("prompt"), str):
            return Prompt(fields["prompt"].encode(errors="replace"))
        if isinstance(fields.get("messages"), list):
            return _chat_prompts(fields)[0]
    raise missing("body.prompt", fields)


def _requested_max_tokens(endpoint: Endpoint, fields: Mapping[str, Any]) -> int | None:
    if endpoint is Endpoint.CHAT and "max_completion_tokens" in fields:
        fields = {"max_tokens": fields["max_completion_tokens"]}
    name = "max_output_tokens" if endpoint is Endpoint.RESPONSES else "max_tokens"
    default = COMPLETIONS_MAX_TOKENS if endpoint is Endpoint.COMPLETIONS else None
    value: int | None = fields.get(name, default)
    return value


def _max_tokens(requested: int | None, prompt: int, longest: int) -> int:
    """Return how many tokens may be generated, or raise what vLLM says to an impossible number."""
    if prompt >= longest:
        message = (
            f"This model's maximum context length is {longest} tokens. However, your prompt "
            f"contains {prompt} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt."
        )
        raise bad_value("input_tokens", prompt, message)
    if requested is None:
        return longest - prompt
    if requested < 1:
        message = f"max_tokens must be at least 1, got {requested}."
        raise bad_value("max_tokens", requested, message)
    if requested > longest:
        message = (
            f"max_tokens={requested} cannot be greater than max_model_len={longest}. "
            "Please request fewer output tokens."
        )
        raise bad_value("max_tokens", requested, message)
    return min(requested, longest - prompt)


def _text(content: Any) -> str:
    """Return the text of a message's content: a string, or parts some of which are text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part) for part in content)
    if isinstance(content, dict):
        return _text(content.get("text", content.get("content", "")))
    return ""


def _turn(role: object, content: Any) -> str:
    return f"<|im_start|>{role}\n{_text(content)}<|im_end|>\n"


def _turns(items: Sequence[Any], tools: Any, system: Any = None) -> tuple[Prompt, ...]:
    turns = [json.dumps(tools)] if tools else []
    if system:
        turns.append(_turn("system", system))
    for item in items:
        role = item.get("role", "user") if isinstance(item, dict) else "user"
        turns.append(_turn(role, item))
    turns.append("<|im_start|>assistant\n")
    return (Prompt("".join(turns).encode(errors="replace")),)


def _chat_prompts(fields: Mapping[str, Any]) -> tuple[Prompt, ...]:
    return _turns(fields["messages"], fields.get("tools"), fields.get("system"))


def _responses_prompts(fields: Mapping[str, Any]) -> tuple[Prompt, ...]:
    given = fields["input"]
    items = given if isinstance(given, list) else [given]
    return _turns(items, fields.get("tools"), fields.get("instructions"))


def _completions_prompts(fields: Mapping[str, Any]) -> tuple[Prompt, ...]:
    given = fields.get("prompt")
    if isinstance(given, str):
        return (Prompt(given.encode(errors="replace")),)
    if isinstance(given, list) and given:
        if all(isinstance(item, int) for item in given):
            return (_token_prompt(given),)
        if all(isinstance(item, str) for item in given):
            return tuple(Prompt(item.encode(errors="replace")) for item in given)
        if all(isinstance(item, list) and item for item in given) and all(
            isinstance(token, int) for item in given for token in item
        ):
            return tuple(_token_prompt(item) for item in given)
    message = "Either prompt or prompt_embeds must be provided and non-empty."
    raise bad_value("prompt", None, message)


def _token_prompt(tokens: Sequence[int]) -> Prompt:
    return Prompt(b"".join((token & 0xFFFFFFFF).to_bytes(4, "big") for token in tokens))


_PROMPTS: dict[Endpoint, Callable[[Mapping[str, Any]], tuple[Prompt, ...]]] = {
    Endpoint.CHAT: _chat_prompts,
    Endpoint.COMPLETIONS: _completions_prompts,
    Endpoint.RESPONSES: _responses_prompts,
    Endpoint.MESSAGES: _chat_prompts,
}
