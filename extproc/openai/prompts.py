"""How much a call makes the engine do: texts to generate, tokens to read.

Rules:
- Both come from the undecoded body. Counting stops being exact, and errs upwards, where exactness
  would take longer than the call is worth.
- The estimate has no tokenizer. A token is about 4 bytes of UTF-8, in Latin script and in Chinese
  alike (a Chinese character has 3 bytes and makes 0.6 to 0.8 tokens).
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from extproc.openai import lax
from extproc.openai.calls import LIMITS, Members
from extproc.openai.endpoints import Endpoint

_BYTES_PER_TOKEN = 4
_ESCAPE_BYTES = 3
"""What ``\\uXXXX`` is longer than the same character in UTF-8."""
_SAMPLE = 64 * 1024
"""Bytes in which escapes are counted."""
_COUNTED = 32 * 1024
"""Prompts in a batch that are counted exactly."""
_MEDIA_TOKENS = 1024
"""What an image or a sound costs, whatever its bytes: a usual size for vision models."""
_MEDIA_BODY = 8 * 1024
"""Bytes; shorter bodies are not searched for media."""
_MEDIA_PARTS = 64
"""Parts that are searched for."""
_MEDIA_KEY = re.compile(rb'(?<!\\)"(?:url|image_url|file_data|data)"\s*:\s*"[\w:/+.;=-]*\Z')
_KEY_BYTES = 160

_decode_array = msgspec.json.Decoder(list[Raw]).decode
_NO_PROMPT = ("response_format", "structured_outputs", "guided_json", "logit_bias", "metadata")


def choices(endpoint: Endpoint, members: Members, limited: Members) -> int:
    """Return how many texts the engine would generate, at least 1."""
    if not LIMITS[endpoint].names:
        return 1
    each = max(1, lax.integer(limited.n, "n") or 1, lax.integer(members.best_of, "best_of") or 1)
    if endpoint is Endpoint.CHAT:
        return each * _length(members.messages, b"[")
    if endpoint is Endpoint.COMPLETIONS:
        return each * max(1, _prompts(members.prompt) + _prompts(members.prompt_embeds))
    return each


def _prompts(raw: Raw) -> int:
    return _length(raw, b'["') if raw else 0


def _length(raw: Raw, items: bytes) -> int:
    """Return the length of an array whose first item starts with one of ``items``, else 1."""
    head = bytes(memoryview(raw)[:_KEY_BYTES]).translate(None, b" \t\r\n")
    if len(head) < 2 or not head.startswith(b"[") or head[1] not in items:
        return 1
    literal = bytes(raw)
    most = literal.count(b"[") + literal.count(b'"') // 2
    return most if most > _COUNTED else max(1, len(_decode_array(raw)))


def prompt_tokens(body: bytes, members: Members) -> int:
    """Estimate the prompt's tokens, at least 1.

    The whole body counts except what no template shows to the model, so no member hides a prompt.
    """
    size = len(body) - sum(len(getattr(members, name)) for name in _NO_PROMPT)
    tokens = 0
    if len(body) > _MEDIA_BODY:
        parts, encoded = _media(body)
        tokens += parts * _MEDIA_TOKENS
        size -= encoded
    sample = body[:_SAMPLE]
    escapes = sample.count(b"\\u") / len(sample) if sample else 0.0
    tokens += int(size * (1 - escapes * _ESCAPE_BYTES)) // _BYTES_PER_TOKEN
    return max(1, tokens)


def _media(body: bytes) -> tuple[int, int]:
    """Return how many base64 parts there are and their bytes.

    Only what stands under a media key counts as such: inside a text the key's quotes would be
    escaped, so a prompt cannot pass for an image.
    """
    parts = encoded = 0
    for marker in (b";base64,", b'"data"'):
        end = 0
        for _ in range(_MEDIA_PARTS):
            start = body.find(marker, end)
            if start < 0:
                break
            begin = start + len(marker)
            if marker == b'"data"':
                begin = body.find(b'"', begin) + 1
            end = body.find(b'"', begin)
            if end < 0 or begin == 0:
                break
            if _MEDIA_KEY.search(body[max(0, begin - _KEY_BYTES) : begin]):
                parts += 1
                encoded += end - begin
    return parts, encoded
