"""Reading a request body.

Rules:
- A body means what the engine makes of it. The engine reads with ``json.loads``: the last of two
  equal names wins, UTF-16 and ``NaN`` are JSON. What the fast reader refuses is read once more the
  engine's own way, and what that refuses is ``Unreadable``: no spelling slips past the clamp.
- A value that the engine is sure to refuse (limits of zero and less) stays, for it to refuse.
"""

from __future__ import annotations

import json
import zlib
from typing import TypeVar

import msgspec
from msgspec import Raw

from extproc.openai import lax
from extproc.openai.calls import LIMITS, Call, Limits, Members
from extproc.openai.endpoints import Endpoint
from extproc.openai.lax import ABSENT, Unreadable, with_headroom
from extproc.openai.prompts import choices, prompt_parts
from extproc.openai.rewriting import rewrite

__all__ = [
    "MAX_DECOMPRESSED",
    "MAX_LENIENT",
    "MAX_STRUCTURE",
    "Call",
    "Unreadable",
    "read",
    "rewrite",
]

MAX_DECOMPRESSED = 1024 * 1024
"""Bytes; a gzip body that grows beyond is refused: 16 KB may be 16 MiB, which take 70 ms."""
MAX_LENIENT = 32 * 1024
"""Bytes; a longer body must be strict JSON in UTF-8, because the engine's own reader is slow."""
MAX_STRUCTURE = 100_000
"""Quotes and opening brackets of a longer body than ``_DENSE``. Reading takes time for them rather
than for bytes: 4 MiB of nothing else take 20 ms, of text 8 ms."""

_DENSE = 512 * 1024
_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[{'))


class _Inner(msgspec.Struct, gc=False):
    """The members that matter inside another member."""

    type: Raw = ABSENT
    mode: Raw = ABSENT
    format: Raw = ABSENT
    include_usage: Raw = ABSENT
    user_id: Raw = ABSENT


_Known = TypeVar("_Known", Members, _Inner)
_NOTHING = _Inner()
_decode_members = msgspec.json.Decoder(Members).decode
_decode_inner = msgspec.json.Decoder(_Inner).decode


def read(endpoint: Endpoint, body: bytes) -> Call:
    """Read ``body`` as the engine would at ``endpoint``; raise ``Unreadable`` where it cannot."""
    gzipped = body.startswith(b"\x1f\x8b")
    if gzipped:
        body = _gunzip(body)
    body = body.removeprefix(b"\xef\xbb\xbf")
    if len(body) > _DENSE:
        _check_structure(body)
    lenient = False
    try:
        members = with_headroom(_decode_members, body)
    except msgspec.ValidationError:
        raise Unreadable("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError):
        body, members = _read_leniently(body)
        lenient = True
    if endpoint is Endpoint.INVOCATIONS:
        endpoint = _invoked(members)
    limited = members
    if endpoint is Endpoint.GENERATE:
        limited = _sampling_params(members.sampling_params)
    return Call(
        endpoint=endpoint,
        model=lax.text(members.model, "model"),
        stream=lax.boolean(members.stream, "stream"),
        lengths=_lengths(LIMITS[endpoint], limited),
        choices=choices(endpoint, members, limited),
        prompt_parts=prompt_parts(body, members),
        structured=_structured(endpoint, members),
        include_usage=_include_usage(members.stream_options),
        user=lax.hint(members.user) or lax.hint(_inner(members.metadata).user_id),
        session=lax.hint(members.session_id) or lax.hint(members.prompt_cache_key),
        background=endpoint is Endpoint.RESPONSES and lax.boolean(members.background, "background"),
        gzipped=gzipped,
        body=body,
        lenient=lenient,
        members=members,
        limited=limited,
    )


def _check_structure(body: bytes) -> None:
    structure = len(body.translate(None, _NO_STRUCTURE))
    if structure > MAX_STRUCTURE and structure - body.count(b'\\"') > MAX_STRUCTURE:
        raise Unreadable(f"The request body has more than {MAX_STRUCTURE} strings and brackets.")


def _gunzip(body: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=31)
    try:
        plain = inflate.decompress(body, MAX_DECOMPRESSED)
    except zlib.error:
        raise Unreadable("The request body is not valid gzip.") from None
    if inflate.unconsumed_tail:
        raise Unreadable(f"The request body decompresses to more than {MAX_DECOMPRESSED} bytes.")
    if not inflate.eof or inflate.unused_data:
        raise Unreadable("The request body is not one complete gzip member.")
    return plain


def _read_leniently(body: bytes) -> tuple[bytes, Members]:
    if len(body) > MAX_LENIENT:
        raise Unreadable("The request body is not strict JSON in UTF-8.")
    try:
        tree, body = with_headroom(_normalised, body)
    except (ValueError, RecursionError):
        raise Unreadable("The request body is not valid JSON.") from None
    if not isinstance(tree, dict):
        raise Unreadable("The request body must be a JSON object.")
    return body, _pick(Members, tree)


def _normalised(body: bytes) -> tuple[object, bytes]:
    tree = json.loads(body)
    return tree, json.dumps(tree).encode()


def _pick(kind: type[_Known], tree: dict[str, object]) -> _Known:
    names = (name for name in kind.__struct_fields__ if name in tree)
    return kind(**{name: Raw(json.dumps(tree[name]).encode()) for name in names})


def _inner(raw: Raw) -> _Inner:
    """Return what matters of a member that should be an object; nothing if it is none."""
    if not raw:
        return _NOTHING
    try:
        return _decode_inner(raw)
    except msgspec.ValidationError:
        return _NOTHING
    except msgspec.DecodeError:  # Only in bodies that were read leniently.
        tree = json.loads(bytes(raw))
        return _pick(_Inner, tree) if isinstance(tree, dict) else _NOTHING


def _sampling_params(raw: Raw) -> Members:
    """Return the limits of tokens in, tokens out."""
    if bytes(memoryview(raw)[:1]) != b"{":
        raise Unreadable("sampling_params must be an object.", "sampling_params")
    try:
        return _decode_members(raw)
    except msgspec.DecodeError:
        return _pick(Members, json.loads(bytes(raw)))


def _invoked(members: Members) -> Endpoint:
    """Return what SageMaker's path stands for.

    vLLM tries chat first, then completions; a body made for both is refused, because only the
    engine's whole validation tells which of them it is.
    """
    prompt = not _null(members.prompt) or not _null(members.prompt_embeds)
    if _null(members.messages):
        return Endpoint.COMPLETIONS if prompt else Endpoint.EMBEDDINGS
    if prompt:
        raise Unreadable("Only one of messages and prompt can be given.", "prompt")
    return Endpoint.CHAT


def _lengths(limits: Limits, limited: Members) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for name in limits.bounding:
        asked = lax.integer(getattr(limited, name), name)
        if asked is not None:
            lengths[name] = asked
    return lengths


def _include_usage(stream_options: Raw) -> bool:
    return lax.boolean(_inner(stream_options).include_usage, "stream_options.include_usage")


def _structured(endpoint: Endpoint, members: Members) -> bool:
    if not any(map(members.__getattribute__, _FORMS)):
        return False  # Most calls.
    return (
        not all(_null(getattr(members, name)) for name in _CONSTRAINTS)
        or _word(_inner(members.response_format).type) in _FORMATS
        or _word(_inner(_inner(members.text).format).type) in _FORMATS
        or not _null(_inner(members.output_config).format)
        or _forced(endpoint, members.tool_choice)
        or _forced(endpoint, members.function_call)
    )


_CONSTRAINTS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "output_format",
)
_FORMS = (
    *_CONSTRAINTS,
    "response_format",
    "text",
    "output_config",
    "tool_choice",
    "function_call",
)
_FORMATS = frozenset(("json_object", "json_schema", "structural_tag"))


def _forced(endpoint: Endpoint, choice: Raw) -> bool:
    """Tell whether the answer has to be a tool call."""
    if _null(choice):
        return False
    inner = _inner(choice)
    if endpoint is Endpoint.MESSAGES:
        return _word(inner.type) in ("any", "tool")
    if bytes(choice).startswith(b"{"):  # A named tool, or a set of tools with a mode.
        return _word(inner.mode) != "auto"
    return _word(choice) in ("required", "REQUIRED")


def _null(raw: Raw) -> bool:
    return not raw or bytes(memoryview(raw)[:4]) == b"null"


def _word(raw: Raw) -> str:
    return lax.hint(raw) if raw else ""
