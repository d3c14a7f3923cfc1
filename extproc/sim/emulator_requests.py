"""What a body sent to one of the emulated endpoints asks for, or the error that vLLM would answer.

Rules kept here:

- Pure: bytes in, a ``Call`` or a ``RefusedError`` out, nothing else.
- Field errors are worded and ordered as vLLM 0.32 words those of its pydantic models; only the fields
  that the emulator uses are checked, all others are ignored, as vLLM ignores unknown ones.
- There is no tokenizer: four bytes of the rendered prompt are one token. Equal leading text gives
  equal leading tokens, so prefixes are shared as they would be.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from typing import Any

BYTES_PER_TOKEN = 4
MAX_N = 128
"""Sequences of one prompt at most."""


class Endpoint(StrEnum):
    """The endpoints that generate."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class RefusedError(Exception):
    """The request is answered with an error.

    Attributes:
        status: HTTP status.
        kind: vLLM's error type, for example ``BadRequestError``.
        message: text for the caller.
        param: the field in question, if there is one.
    """

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


INVALID = "Bad Request"
"""Error type of a body that is not what the endpoint's schema says."""


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
        seed: a number made of the body, for what is drawn for this call.
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


@dataclass(frozen=True, slots=True)
class _Problem:
    kind: str
    message: str
    context: Mapping[str, object] | None = None


_Check = Callable[[Any], tuple[Any, _Problem | None]]


def _integer(value: Any) -> tuple[Any, _Problem | None]:
    if isinstance(value, int):
        return int(value), None
    if isinstance(value, float):
        if value.is_integer():
            return int(value), None
        text = "Input should be a valid integer, got a number with a fractional part"
        return None, _Problem("int_from_float", text)
    if isinstance(value, str):
        try:
            return int(value), None
        except ValueError:
            text = "Input should be a valid integer, unable to parse string as an integer"
            return None, _Problem("int_parsing", text)
    return None, _Problem("int_type", "Input should be a valid integer")


INT64_MAX = 2**63 - 1


def _int64(value: Any) -> tuple[Any, _Problem | None]:
    number, problem = _integer(value)
    if problem is not None:
        return None, problem
    if number > INT64_MAX:
        text = f"Input should be less than or equal to {INT64_MAX}"
        return None, _Problem("less_than_equal", text, {"le": INT64_MAX})
    if number < -INT64_MAX - 1:
        text = f"Input should be greater than or equal to {-INT64_MAX - 1}"
        return None, _Problem("greater_than_equal", text, {"ge": -INT64_MAX - 1})
    return number, None


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "t": True, "y": True} | {
    "false": False, "0": False, "no": False, "off": False, "f": False, "n": False,
}  # fmt: skip


def _boolean(value: Any) -> tuple[Any, _Problem | None]:
    if isinstance(value, bool):
        return value, None
    if isinstance(value, str | int | float):
        known = _BOOLEANS.get(str(value).lower())
        if known is not None:
            return known, None
        text = "Input should be a valid boolean, unable to interpret input"
        return None, _Problem("bool_parsing", text)
    return None, _Problem("bool_type", "Input should be a valid boolean")


def _instance(wanted: type, kind: str, text: str, value: Any) -> tuple[Any, _Problem | None]:
    return (value, None) if isinstance(value, wanted) else (None, _Problem(kind, text))


_string = partial(_instance, str, "string_type", "Input should be a valid string")
_list = partial(_instance, list, "list_type", "Input should be a valid list")
_object = partial(_instance, dict, "dict_type", "Input should be a valid dictionary")


def _anything(value: Any) -> tuple[Any, _Problem | None]:
    return value, None


@dataclass(frozen=True, slots=True)
class _Field:
    check: _Check
    required: bool = False
    nullable: bool = True


_COMMON = {
    "model": _Field(_string),
    "stream": _Field(_boolean),
    "ignore_eos": _Field(_boolean, nullable=False),
    "min_tokens": _Field(_integer, nullable=False),
    "priority": _Field(_int64, nullable=False),
    "n": _Field(_integer),
}
_SCHEMAS: dict[Endpoint, dict[str, _Field]] = {
    Endpoint.CHAT: {
        "messages": _Field(_list, required=True, nullable=False),
        "max_tokens": _Field(_integer),
        "max_completion_tokens": _Field(_integer),
        "stream_options": _Field(_object),
        **_COMMON,
    },
    Endpoint.COMPLETIONS: {
        "prompt": _Field(_anything),
        "max_tokens": _Field(_integer),
        "stream_options": _Field(_object),
        **_COMMON,
    },
    Endpoint.RESPONSES: {
        "input": _Field(_anything, required=True, nullable=False),
        "max_output_tokens": _Field(_integer),
        **{name: _COMMON[name] for name in ("model", "stream", "ignore_eos", "priority")},
    },
    Endpoint.MESSAGES: {
        "model": _Field(_string, required=True, nullable=False),
        "messages": _Field(_list, required=True, nullable=False),
        "max_tokens": _Field(_integer, required=True, nullable=False),
        "stream": _Field(_boolean),
    },
}


def read_json(body: bytes) -> Any:
    """Parse a body.

    Raises:
        RefusedError: it is empty or not JSON.
    """
    if not body:
        raise _invalid([("body", _Problem("missing", "Field required"), None)])
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        problem = _Problem("json_invalid", "JSON decode error", {"error": error.msg})
        raise _invalid([(f"body.{error.pos}", problem, {})]) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, an endless number, or too deep
        raise RefusedError(400, INVALID, "There was an error parsing the body") from error


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
    fields = _checked(endpoint, read_json(body))
    asked_model = fields.get("model")
    if asked_model not in (None, "", model):
        message = f"The model `{asked_model}` does not exist. Valid aliases: {model}."
        raise RefusedError(404, "NotFoundError", message, "model")
    stream = bool(fields.get("stream"))
    options: Mapping[str, Any] = fields.get("stream_options") or {}
    if options and not stream:
        message = "Stream options can only be defined when `stream=True`."
        raise _bad_value("stream_options", None, message)
    n = 1 if fields.get("n") is None else fields["n"]
    if n < 1:
        raise _bad_value("n", n, f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise _bad_value("n", n, f"n must be at most {MAX_N}, got {n}.")
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
        seed=zlib.crc32(body),
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
    raise _invalid([("body.prompt", _Problem("missing", "Field required"), fields)])


def _checked(endpoint: Endpoint, body: Any) -> dict[str, Any]:
    """Return the fields that are known here, converted, or raise for all that are wrong."""
    if not isinstance(body, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid([("body", _Problem("model_attributes_type", text), body)])
    fields: dict[str, Any] = dict(body)
    problems: list[tuple[str, _Problem, Any]] = []
    for name, field in _SCHEMAS[endpoint].items():
        if name not in body:
            if field.required:
                problems.append((f"body.{name}", _Problem("missing", "Field required"), body))
            continue
        if body[name] is None and field.nullable:
            continue
        fields[name], problem = field.check(body[name])
        if problem is not None:
            problems.append((f"body.{name}", problem, body[name]))
    if problems:
        raise _invalid(problems)
    if endpoint is Endpoint.MESSAGES:  # Anthropic's schema has none of vLLM's own fields
        for name in ("priority", "ignore_eos", "min_tokens", "n", "stream_options"):
            fields.pop(name, None)
    if endpoint is Endpoint.RESPONSES:
        for name in ("min_tokens", "n", "stream_options"):
            fields.pop(name, None)
    return fields


def _invalid(problems: Sequence[tuple[str, _Problem, Any]]) -> RefusedError:
    lines: list[str] = []
    for place, problem, value in problems:
        shown: dict[str, object] = {
            "type": problem.kind,
            "loc": place,
            "msg": problem.message,
            "input": _summary(value),
        }
        if problem.context is not None:
            shown["ctx"] = problem.context
        lines.append(f"  {shown}")
    count = len(problems)
    head = f"{count} validation error{'s' if count > 1 else ''}:"
    return RefusedError(400, INVALID, "\n".join((head, *lines)), problems[0][0])


def _summary(value: Any) -> str:
    """Show a value as vLLM does: containers by their size."""
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)


def _bad_value(param: str, value: object, message: str) -> RefusedError:
    shown = f"(parameter={param}, value={value})" if value is not None else f"(parameter={param})"
    return RefusedError(400, "BadRequestError", f"{message} {shown}", param)


def _requested_max_tokens(endpoint: Endpoint, fields: Mapping[str, Any]) -> int | None:
    if endpoint is Endpoint.CHAT and fields.get("max_completion_tokens") is not None:
        return int(fields["max_completion_tokens"])
    if endpoint is Endpoint.COMPLETIONS and "max_tokens" not in fields:
        return 16
    name = "max_output_tokens" if endpoint is Endpoint.RESPONSES else "max_tokens"
    value = fields.get(name)
    return None if value is None else int(value)


def _max_tokens(requested: int | None, prompt: int, longest: int) -> int:
    """Return how many tokens may be generated, or raise what vLLM says to an impossible number."""
    context = f"This model's maximum context length is {longest} tokens."
    if prompt >= longest:
        message = (
            f"{context} However, your prompt contains {prompt} input tokens, which exceeds this "
            "limit even without any output tokens. Please reduce the length of the input prompt."
        )
        raise _bad_value("input_tokens", prompt, message)
    if requested is None:
        return longest - prompt
    if requested < 1:
        message = f"max_tokens must be at least 1, got {requested}."
        raise _bad_value("max_tokens", requested, message)
    if requested > longest:
        message = (
            f"max_tokens={requested} cannot be greater than max_model_len={longest}. "
            "Please request fewer output tokens."
        )
        raise _bad_value("max_tokens", requested, message)
    if prompt + requested > longest:
        least = longest - requested + 1
        message = (
            f"{context} However, you requested {requested} output tokens and your prompt contains "
            f"at least {least} input tokens, for a total of at least {longest + 1} tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens."
        )
        raise _bad_value("input_tokens", least, message)
    return requested


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
    raise _bad_value("prompt", None, message)


def _token_prompt(tokens: Sequence[int]) -> Prompt:
    return Prompt(b"".join((token & 0xFFFFFFFF).to_bytes(4, "big") for token in tokens))


_PROMPTS: dict[Endpoint, Callable[[Mapping[str, Any]], tuple[Prompt, ...]]] = {
    Endpoint.CHAT: _chat_prompts,
    Endpoint.COMPLETIONS: _completions_prompts,
    Endpoint.RESPONSES: _responses_prompts,
    Endpoint.MESSAGES: _chat_prompts,
}
